"""Trials of suspects: one runs at a time, alone in the process, so that its crash convicts it.

See `custody.py`. A trial begins once all running handlers have ended, and nothing else begins
before the last trial has ended. That takes at most `_LIMIT_S`, doubled after each further death;
then the remaining suspects run concurrently with all other messages. So slow but innocent messages
delay the others no longer than deaths do, and a message that kills its process later than that is
convicted one or two deaths later.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from kairos.cluster.kafka.share import Share

logger = logging.getLogger(__name__)

_LIMIT_S = 20.0
_DOUBLINGS = 8

Secure = Callable[[], Awaitable[None]]  # returns once the shares' state is committed


class Trials:
    """Trials of all consumptions of a process.

    Consumptions report shares and handlers, and ask before they begin a message. `listeners` are
    called when more may begin.
    """

    def __init__(self) -> None:
        self.listeners: set[Callable[[], None]] = set()
        self._asking = 0  # shares of which it is not known yet whether they have suspects
        self._holding: dict[Share, None] = {}  # those with suspects that are to be tried
        self._in_hand = 0  # handlers that are at work
        self._tried: tuple[Share, int, Secure] | None = None
        self._limit: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()

    def may_begin(self, share: Share, offset: int) -> bool:
        if self._holding:
            return offset in share.custody.suspects
        return not self._asking

    def ask(self) -> None:
        """Block new handlers until it is known whether the partition's last holder died."""
        self._asking += 1

    def answer(self, share: Share) -> None:
        self._asking -= 1
        if share.custody.suspects:
            self._holding[share] = None
            if self._limit is None:
                self._limit = asyncio.create_task(self._end_after(_limit_s(share)))
            self.review()
        elif not self._holding and not self._asking:
            self._let_all_begin()

    def begin(self) -> None:
        self._in_hand += 1

    def end(self) -> None:
        self._in_hand -= 1
        self.review()

    def review(self) -> None:
        """Check again after a suspect is done, a share is lost or a handler has ended."""
        if not self._holding:
            return
        # A trial whose result is not committed yet would be blamed for the next one's crash.
        tried = None if self._tried is None else self._tried[0]
        for share in list(self._holding):
            if share is not tried and (share.is_lost or not share.custody.suspects):
                del self._holding[share]
        self._changed.set()
        if not self._holding:
            self._let_all_begin()

    def _let_all_begin(self) -> None:
        if self._limit is not None:
            self._limit.cancel()
            self._limit = None
        for tell in list(self.listeners):
            tell()

    @asynccontextmanager
    async def trial(self, share: Share, offset: int, secure: Secure) -> AsyncIterator[None]:
        """Run a suspect's handler in the block: alone, and noted as such, unless trials timed out.

        The trial ends when its result is committed.
        """
        self._in_hand -= 1  # until then
        try:
            while self._holding and self._in_hand > 0:
                self._changed.clear()
                await self._changed.wait()
        finally:
            self._in_hand += 1
        is_alone = bool(self._holding)  # else trials have taken too long
        ours = (share, offset, secure)
        if is_alone:
            self._tried = ours
        try:
            share.custody.begin(offset, alone=is_alone)
            await secure()
            if is_alone:
                logger.warning("%s/%d at %d is tried alone", share.topic, share.partition, offset)
            yield
            share.custody.go_on_beside(offset)
            await secure()
        finally:
            if self._tried is ours:
                self._tried = None
                self.review()

    async def _end_after(self, limit_s: float) -> None:
        await asyncio.sleep(limit_s)
        logger.warning("suspects were tried for %g s: the rest now runs concurrently", limit_s)
        if self._tried is not None:
            share, offset, secure = self._tried
            share.custody.go_on_beside(offset)
            await secure()
        self._limit = self._tried = None
        self._holding.clear()
        self._changed.set()
        self._let_all_begin()


def _limit_s(share: Share) -> float:
    return _LIMIT_S * 2.0 ** min(share.custody.deaths - 2, _DOUBLINGS)
