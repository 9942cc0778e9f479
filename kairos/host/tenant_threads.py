"""Threads that all tenants share.

Each tenant may use a few of them at once, and its further work waits in turn, so that no tenant
blocks the others.
"""

import asyncio
import contextlib
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import TypeVar
from weakref import WeakValueDictionary

_T = TypeVar("_T")


class TenantThreads:
    def __init__(self, threads: Executor, most: int) -> None:
        """Create the pool. A tenant may use `most` threads at once, fewer than there are."""
        self._threads, self._most = threads, most
        # Of those that have some, or wait for one.
        self._turns: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    async def run(self, tenant: str, work: Callable[[], _T]) -> _T:
        """Return the result of the work, or raise its error.

        If cancelled, work that has begun keeps its thread, and its tenant's turn, to its end.
        """
        turns = self._turns.setdefault(tenant, asyncio.Semaphore(self._most))
        await turns.acquire()
        loop = asyncio.get_running_loop()

        def give_back(_: Future[_T]) -> None:  # in the work's thread
            with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
                loop.call_soon_threadsafe(turns.release)

        asked = None
        try:
            asked = self._threads.submit(work)
            return await asyncio.wrap_future(asked)
        finally:
            if asked is None or asked.done():
                turns.release()
            else:
                asked.add_done_callback(give_back)
            asked = None  # an error has this frame, and its future has the error
