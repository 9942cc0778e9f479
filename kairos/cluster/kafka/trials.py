"""One suspect at a time, and nothing else beside it, in all of a process: what kills the process
then is known (`custody.py`).

A suspect's trial begins when whatever was in hand has ended, and until the last trial is over
nothing else begins. That takes `_LIMIT_S` at most, twice as long after each further death: then
suspects go on side by side, with all others. So what is innocent and slow holds up the others no
longer than deaths do, and what kills its process later than that is found one or two deaths later.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from kairos.cluster.kafka.share import Share

logger = logging.getLogger(__name__)

_LIMIT_S = 20.0
_DOUBLINGS = 8

Secure = Callable[[], Awaitable[None]]  # until it is committed what shares say of themselves


class Trials:
    """Of all consumptions of a process. They tell it of shares and handlers, and ask it before they
    begin one; `listeners` are called when more may begin."""

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
        """The partition's last holder may have died: nothing begins until that is known."""
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
        """A suspect may be done, or a share be lost, or a handler have ended."""
        if not self._holding:
            return
        # What is done, and not safe yet, would be blamed for what the next one does.
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
        """In a suspect's handler: it begins when it is its turn, and has been noted. The trial ends
        when what came of it is safe."""
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
        logger.warning("suspects were tried for %g s: the rest goes on beside all others", limit_s)
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
