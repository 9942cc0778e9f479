"""A member of a consumer group at work: up to so many handlers at once, one for a key at a time."""

import asyncio
import logging
from collections import deque

from kairos.live.bus.delivery import Delivery, Undeliverable, dead_letter
from kairos.live.kafka.consumer_commands import Where
from kairos.live.kafka.items import Assigned, Item, Passed, ReceivedMessage, Revoked
from kairos.live.kafka.outbox import HandledMessage, Outbox
from kairos.live.kafka.share import Share
from kairos.live.kafka.subscription import Subscription
from kairos.live.kafka.transactions import Transactions
from kairos.ports import Handler, Message
from kairos.topics import DEAD_LETTERS

logger = logging.getLogger(__name__)

_HELD_BYTES = 32 << 20  # of messages in hand, and of what is to go out for them
_LEAVE_S = 5.0  # for handlers to end, and for what had been finished to be sent


class Consumption:
    """`run` until cancelled; then handlers are cancelled, and what was finished still goes out."""

    def __init__(
        self,
        subscription: Subscription,
        transactions: Transactions,
        group: str,
        handler: Handler,
        concurrency: int,
    ) -> None:
        self._subscription = subscription
        self._group = group
        self._handler = handler
        self._concurrency = concurrency
        self._shares: dict[Where, Share] = {}
        self._outbox = Outbox(subscription, transactions, self._shares, self._buried, self._proceed)
        self._ready: deque[tuple[Share, ReceivedMessage]] = deque()
        self._running: dict[tuple[Where, str], asyncio.Task[None]] = {}
        # Their key is in the hands of a handler that began before the last rebalance.
        self._blocked: dict[tuple[Where, str], tuple[Share, ReceivedMessage]] = {}
        self._is_ending = False
        self._broken: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def run(self) -> None:
        reading = asyncio.create_task(self._read())
        sending = asyncio.create_task(self._outbox.run())
        try:
            first, _ = await asyncio.wait(
                {reading, sending, self._broken}, return_when=asyncio.FIRST_COMPLETED
            )
            for failed in first:
                failed.result()
        finally:
            self._is_ending = True
            self._outbox.close()
            await self._end(reading, sending)

    async def _end(self, reading: asyncio.Task[None], sending: asyncio.Task[None]) -> None:
        handlers = self._running.values()
        for task in (reading, *handlers):
            task.cancel()
        _, late = await asyncio.wait({reading, sending, *handlers}, timeout=_LEAVE_S)
        if late:
            logger.warning(
                "%s: left while %d handlers or the last transaction had not ended",
                self._group,
                len(late),
            )
        sending.cancel()

    async def _read(self) -> None:
        while True:
            for item in await self._subscription.batch():
                self._take(item)
            self._proceed()
            await asyncio.sleep(0)  # batches may come without a pause

    def _take(self, item: Item) -> None:
        where = (item.topic, item.partition)
        match item:
            case Assigned():
                self._shares[where] = Share(item)
            case Revoked():
                self._lose(where)
            case ReceivedMessage() | Passed() if where in self._shares:
                self._shares[where].add(item)

    def _lose(self, where: Where) -> None:
        if (share := self._shares.pop(where, None)) is not None:
            share.is_lost = True
            for (at, _), handler in self._running.items():
                if at == where:
                    handler.cancel()

    def _proceed(self) -> None:
        """Start what may be started, and see to what is read."""
        if self._is_ending:
            return
        for share in self._shares.values():
            self._ready.extend((share, received) for received in share.begin())
        while self._ready and len(self._running) < self._concurrency:
            self._start(*self._ready.popleft())
        held_bytes = self._outbox.held_bytes
        held_bytes += sum(share.held_bytes for share in self._shares.values())
        is_full = any(share.is_full for share in self._shares.values())
        self._subscription.hold(is_full or held_bytes > _HELD_BYTES)

    def _start(self, share: Share, received: ReceivedMessage) -> None:
        if share.is_lost:
            return
        what = ((received.topic, received.partition), received.key)
        if what in self._running:
            self._blocked[what] = (share, received)
            return
        handler = asyncio.create_task(self._handle(share, received))
        self._running[what] = handler
        handler.add_done_callback(lambda task: self._ended(what, task))

    async def _handle(self, share: Share, received: ReceivedMessage) -> None:
        message = Message(key=received.key, value=received.value or b"", headers=received.headers)
        try:
            outgoing = await Delivery(message).perform(self._handler)
            finished = HandledMessage(share, received, outgoing)
        except Undeliverable as error:
            finished = self._buried(share, received, str(error))
        if not self._is_ending:  # else it was cancelled, and made something else of it
            self._outbox.add(finished)
            if (follower := share.next_of(received.key)) is not None:
                self._ready.append((share, follower))

    def _buried(self, share: Share, received: ReceivedMessage, reason: str) -> HandledMessage:
        message = Message(key=received.key, value=received.value or b"", headers=received.headers)
        letter = dead_letter(received.topic, self._group, message, reason)
        if received.topic == DEAD_LETTERS:  # the dead are not buried twice
            logger.error("%s: the dead letter of %.100r is lost", self._group, received.key)
            return HandledMessage(share, received, ())
        return HandledMessage(share, received, [(DEAD_LETTERS, letter)], is_dead=True)

    def _ended(self, what: tuple[Where, str], handler: asyncio.Task[None]) -> None:
        del self._running[what]
        if not handler.cancelled() and (error := handler.exception()) is not None:
            if not self._broken.done():
                self._broken.set_exception(error)
            return
        if (blocked := self._blocked.pop(what, None)) is not None:
            self._ready.append(blocked)
        self._proceed()
