"""Batches in a process with a directory for them: their routes, and their driver.

Every process with the directory serves files and batches. One of them drives: the one that holds
the directory's lock. If it dies, another takes the lock within a second, and repeats the calls
without a result on disk.
"""

import asyncio
import logging
import sqlite3
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING

from kairos.batches.batch_routes import BatchRoutes
from kairos.batches.driver import BatchDriver
from kairos.batches.file_routes import FileRoutes
from kairos.batches.kept import KeptBatches
from kairos.batches.openapi import with_batches
from kairos.core import SECOND
from kairos.gateway import Access, Gateway, InnerGateway

if TYPE_CHECKING:
    from fastapi import FastAPI

logger = logging.getLogger(__name__)

_LOCK_S = 1.0  # between two attempts to take the lock
_RESTART_S = 5.0
_SWEEP_S = 60.0  # between two removals of expired files


class BatchesOn:
    def __init__(
        self, kept: KeptBatches, access: Access, gateway: Gateway, now: Callable[[], int]
    ) -> None:
        self._kept, self._now = kept, now
        self._gateway = InnerGateway(gateway)
        self._driver: BatchDriver | None = None  # while this process drives
        self._files = FileRoutes(kept, access, now)
        self._batches = BatchRoutes(kept, access, lambda: gateway.classes, self._wake, now)

    def add_to(self, app: "FastAPI") -> None:
        self._files.add_to(app)
        self._batches.add_to(app)
        described = with_batches(app.openapi())
        app.openapi = lambda: described  # type: ignore[method-assign]

    def background(self) -> list[Coroutine[None, None, None]]:
        return [self._drive(), self._sweep()]

    def _wake(self) -> None:
        if self._driver is not None:
            self._driver.wake()

    async def _drive(self) -> None:
        while True:
            with self._kept.driving() as is_ours:
                if is_ours:
                    await self._drive_on()
            await asyncio.sleep(_LOCK_S)

    async def _drive_on(self) -> None:
        try:
            self._driver = BatchDriver(self._kept, self._gateway, self._now)
            await self._driver.run()
        except (OSError, sqlite3.Error) as error:
            logger.warning("batches are paused for %g s: %s", _RESTART_S, error)
            await asyncio.sleep(_RESTART_S)
        finally:
            self._driver = None

    async def _sweep(self) -> None:
        while True:
            try:
                await asyncio.to_thread(self._kept.files.remove_old, self._now() // SECOND)
            except (OSError, sqlite3.Error) as error:
                logger.warning("old files of batches cannot be removed: %s", error)
            await asyncio.sleep(_SWEEP_S)
