"""Live view of the page: one snapshot for all viewers, taken only while there are any."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Iterator

from kairos.core import Unavailable

logger = logging.getLogger(__name__)

PERIOD_S = 0.8  # so that what is seen is no older than a second
MAX_VIEWERS = 100


class TooManyViewers(Unavailable):
    """The maximum number of pages is open."""

    code = "too_many_viewers"
    says = f"{MAX_VIEWERS} pages are open already: close one, and load this again"


class Watch:
    """Publisher of a snapshot every `PERIOD_S` while anyone watches, until `run` is cancelled."""

    def __init__(self, take: Callable[[], bytes]) -> None:
        self._take = take
        self._viewers = 0
        self._wanted = asyncio.Event()
        self._next = asyncio.Event()  # another each time
        self._latest: bytes | None = None  # None: nobody viewed when it was due
        self._is_over = False

    async def run(self) -> None:
        """Take snapshots. An error in one is logged, and nothing else."""
        try:
            while True:
                await self._wanted.wait()
                try:
                    self._tell(self._take())
                except Exception:
                    logger.exception("the operators' page is not updated: an error in Kairos")
                await asyncio.sleep(PERIOD_S)
        finally:
            self._is_over = True
            self._tell(None)

    def check(self) -> None:
        """Check that one more viewer is allowed. Raises TooManyViewers: The limit is reached."""
        if self._viewers >= MAX_VIEWERS:
            raise TooManyViewers

    async def pictures(self) -> AsyncIterator[bytes]:
        """Yield the latest snapshot, then each new one, until `run` ends.

        A slow viewer misses some.
        """
        with self._viewing():
            latest = self._latest
            while not self._is_over:
                following = self._next
                if latest is not None:
                    yield latest
                if following is self._next:
                    await following.wait()
                latest = self._latest

    @contextlib.contextmanager
    def _viewing(self) -> Iterator[None]:
        self._viewers += 1
        self._wanted.set()
        try:
            yield
        finally:
            self._viewers -= 1
            if not self._viewers:
                self._wanted.clear()
                self._latest = None

    def _tell(self, picture: bytes | None) -> None:
        self._latest = picture
        told, self._next = self._next, asyncio.Event()
        told.set()
