"""Progress on a terminal or in a log."""

import asyncio
from collections.abc import Callable

from rich.console import Console
from rich.live import Live
from rich.text import Text

REFRESH_S = 0.25
LINE_EVERY_S = 5.0  # where there is no terminal to redraw


async def show_progress(console: Console, told: Callable[[], Text | str]) -> None:
    """Show the text that `told` returns, repeatedly until cancelled."""
    if not console.is_terminal:
        while True:
            await asyncio.sleep(LINE_EVERY_S)
            console.print(told(), soft_wrap=True)
    with Live(console=console, auto_refresh=False, transient=True) as live:
        while True:
            live.update(told(), refresh=True)
            await asyncio.sleep(REFRESH_S)
