"""Looks at the disk for figures of what several processes write there: again and again, beside the
loop, so that no scrape waits for it."""

import asyncio
import contextlib
import sqlite3
from collections.abc import Callable

LOOK_S = 2.0  # between two looks


async def look_again(look: Callable[[], None]) -> None:
    """Until cancelled, in threads. Of a disk that does not do what it should, whoever writes
    tells."""
    while True:
        with contextlib.suppress(sqlite3.Error):
            await asyncio.to_thread(look)
        await asyncio.sleep(LOOK_S)
