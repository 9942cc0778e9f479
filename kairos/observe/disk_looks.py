"""Periodic reads of the disk for metrics of files shared by several processes.

They run off the event loop, so that no scrape waits for them.
"""

import asyncio
import contextlib
import sqlite3
from collections.abc import Callable

LOOK_S = 2.0  # interval


async def look_again(look: Callable[[], None]) -> None:
    """Call `look` periodically in threads, until cancelled.

    Disk errors are ignored here; the writing process logs them.
    """
    while True:
        with contextlib.suppress(sqlite3.Error):
            await asyncio.to_thread(look)
        await asyncio.sleep(LOOK_S)
