"""The bus on Kafka: across processes and machines, with messages that survive restarts."""

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from typing import Self

from kairos.cluster.bus.delivery import Delivery, Undeliverable, dead_letter
from kairos.cluster.bus.envelope import message_bytes
from kairos.cluster.kafka.cluster import KafkaCluster
from kairos.cluster.kafka.connectivity import Connectivity
from kairos.cluster.kafka.consumer_commands import Where
from kairos.cluster.kafka.custody import BEGUN_LIMIT
from kairos.cluster.kafka.items import Assigned, Item, Passed, ReceivedMessage, Revoked
from kairos.cluster.kafka.outbox import HandledMessage, Outbox
from kairos.cluster.kafka.producer import Producer
from kairos.cluster.kafka.share import Share
from kairos.cluster.kafka.subscription import Subscription
from kairos.cluster.kafka.transactions import Transactions
from kairos.cluster.kafka.trials import Trials
from kairos.core import Handler, Message, MessageTooLarge, Outgoing, Topic, Unavailable

logger = logging.getLogger(__name__)

_AGAIN_S = 0.05
_HELD_BYTES = 32 << 20  # of messages in hand, and of what is to go out for them
_LEAVE_S = 5.0  # for handlers to end, and for what had been finished to be sent


class Consumption:
    """A consumer-group member that runs handlers: a bounded number at once, one at a time per key.

    `run` until cancelled: handlers are cancelled, finished work is sent.
    """

    def __init__(
        self,
        subscription: Subscription,
        transactions: Transactions,
        group: str,
        handler: Handler,
        concurrency: int,
        trials: Trials,
    ) -> None:
        """Create the consumption. `trials` are shared by all consumptions of the process."""
        self._subscription = subscription
        self._group = group
        self._handler = handler
        self._concurrency = concurrency
        self._trials = trials
        self._shares: dict[Where, Share] = {}
        self._outbox = Outbox(subscription, transactions, self._shares, self._buried, self._proceed)
        self._ready: deque[tuple[Share, ReceivedMessage]] = deque()
        self._opening: set[asyncio.Task[None]] = set()
        self._running: dict[tuple[Where, str], asyncio.Task[None]] = {}
        # Their key is in the hands of a handler that began before the last rebalance.
        self._blocked: dict[tuple[Where, str], tuple[Share, ReceivedMessage]] = {}
        self._is_ending = False
        self._broken: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def run(self) -> None:
        reading = asyncio.create_task(self._read())
        sending = asyncio.create_task(self._outbox.run())
        self._trials.listeners.add(self._proceed)
        try:
            first, _ = await asyncio.wait(
                {reading, sending, self._broken}, return_when=asyncio.FIRST_COMPLETED
            )
            for failed in first:
                failed.result()
        finally:
            self._is_ending = True
            self._trials.listeners.discard(self._proceed)
            for share in self._shares.values():
                share.leave()
            self._outbox.close()
            await self._end(reading, sending)

    async def _end(self, reading: asyncio.Task[None], sending: asyncio.Task[None]) -> None:
        handlers = self._running.values()
        for task in (reading, *self._opening, *handlers):
            task.cancel()
        _, late = await asyncio.wait({reading, sending, *handlers}, timeout=_LEAVE_S)
        if late:
            logger.warning(
                "%s: left while %d handlers or the last transaction had not ended",
                self._group,
                len(late),
            )
        sending.cancel()
        for share in self._shares.values():
            share.is_lost = True
        self._trials.review()

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
                share = self._shares[where] = Share(item)
                opening = asyncio.create_task(self._open(share))
                self._opening.add(opening)
                opening.add_done_callback(self._opened)
            case Revoked():
                self._lose(where)
            case ReceivedMessage() | Passed() if where in self._shares:
                self._shares[where].add(item)

    async def _open(self, share: Share) -> None:
        """Find out whether the partition's last holder died, then claim the partition."""
        self._trials.ask()
        try:
            if share.custody.holder:
                await self._blame(share)
            share.claim(self._subscription.holder)
        finally:
            self._trials.answer(share)
        await self._outbox.secure()
        share.is_open = True
        self._proceed()

    async def _blame(self, share: Share) -> None:
        """Record a death in the share's custody if its last holder has left the group.

        If that cannot be found out, no death is recorded.
        """
        where = (share.topic, share.partition)
        try:
            if await self._subscription.is_alive(share.custody.holder):
                return
            share.custody.holder_died(await self._subscription.members.end(where))
        except Unavailable as error:
            logger.warning("cannot tell whether a member of %s died: %s", self._group, error)
            return
        custody = share.custody
        told = (*where, custody.deaths, len(custody.suspects))
        level = logging.WARNING if custody.suspects else logging.INFO
        logger.log(level, "the holder of %s/%d died (%d in a row): %d messages are suspects", *told)

    def _opened(self, opening: asyncio.Task[None]) -> None:
        self._opening.discard(opening)
        self._break_by(opening)

    def _lose(self, where: Where) -> None:
        if (share := self._shares.pop(where, None)) is not None:
            share.is_lost = True
            for (at, _), handler in self._running.items():
                if at == where:
                    handler.cancel()
            self._trials.review()

    def _proceed(self) -> None:
        """Start the handlers that may start now, and pause or resume reading."""
        if self._is_ending:
            return
        for share in self._shares.values():
            self._ready.extend((share, received) for received in share.begin())
        self._trials.review()
        postponed: list[tuple[Share, ReceivedMessage]] = []
        while self._ready and len(self._running) < self._concurrency:
            share, received = self._ready.popleft()
            if self._may_begin(share, received.offset):
                self._start(share, received)
            else:
                postponed.append((share, received))
        self._ready.extendleft(reversed(postponed))
        held_bytes = self._outbox.held_bytes
        held_bytes += sum(share.held_bytes for share in self._shares.values())
        is_full = any(share.is_full for share in self._shares.values())
        self._subscription.hold(is_full or held_bytes > _HELD_BYTES)

    def _may_begin(self, share: Share, offset: int) -> bool:
        if share.is_lost:
            return True  # `_start` drops it
        if not self._trials.may_begin(share, offset):
            return False
        custody = share.custody
        if not custody.deaths:
            return True
        if offset in custody.suspects and custody.convicted in custody.suspects - {offset}:
            return False  # the convicted one is buried first, so as not to confuse the two
        has_room = len(custody.begun) < BEGUN_LIMIT or offset in custody.suspects
        return has_room or not custody.may_be_to_blame(offset)

    def _start(self, share: Share, received: ReceivedMessage) -> None:
        if share.is_lost:
            return
        what = ((received.topic, received.partition), received.key)
        if what in self._running:
            self._blocked[what] = (share, received)
            return
        custody = share.custody
        offset = received.offset
        if custody.may_be_to_blame(offset) and offset not in custody.suspects:
            custody.begin(offset)
        self._trials.begin()
        handler = asyncio.create_task(self._handle(share, received))
        self._running[what] = handler
        handler.add_done_callback(lambda task: self._ended(what, task))

    async def _handle(self, share: Share, received: ReceivedMessage) -> None:
        custody, offset = share.custody, received.offset
        if offset in custody.suspects:
            async with self._trials.trial(share, offset, self._outbox.secure):
                self._finish(await self._perform(share, received))
        else:
            if offset in custody.begun:
                await self._outbox.secure()
            self._finish(await self._perform(share, received))

    async def _perform(self, share: Share, received: ReceivedMessage) -> HandledMessage:
        deaths = share.custody.deaths
        if share.custody.convicted == received.offset:
            why = f"ProcessDied: {deaths} in a row that had it in hand, the last nothing else"
            return self._buried(share, received, why)
        message = Message(key=received.key, value=received.value or b"", headers=received.headers)
        try:
            outgoing = await Delivery(message).perform(self._handler)
            return HandledMessage(share, received, outgoing)
        except Undeliverable as error:
            return self._buried(share, received, str(error))

    def _finish(self, finished: HandledMessage) -> None:
        share, received = finished.share, finished.received
        if not self._is_ending:  # else it was cancelled, and the handler swallowed that
            self._outbox.add(finished)
            if (follower := share.next_of(received.key)) is not None:
                self._ready.append((share, follower))

    def _buried(self, share: Share, received: ReceivedMessage, reason: str) -> HandledMessage:
        message = Message(key=received.key, value=received.value or b"", headers=received.headers)
        letter = dead_letter(received.topic, self._group, message, reason)
        if received.topic == Topic.DEAD_LETTERS:  # dead letters are not dead-lettered again
            logger.error("%s: the dead letter of %.100r is lost", self._group, received.key)
            return HandledMessage(share, received, ())
        return HandledMessage(share, received, [(Topic.DEAD_LETTERS, letter)], is_dead=True)

    def _ended(self, what: tuple[Where, str], handler: asyncio.Task[None]) -> None:
        del self._running[what]
        self._trials.end()
        if self._break_by(handler):
            return
        if (blocked := self._blocked.pop(what, None)) is not None:
            self._ready.append(blocked)
        self._proceed()

    def _break_by(self, task: asyncio.Task[None]) -> bool:
        """End the consumption if the task failed, with its error. Return whether it failed."""
        if task.cancelled() or (error := task.exception()) is None:
            return False
        if not self._broken.done():
            self._broken.set_exception(error)
        return True


class KafkaBus:
    """The port `Bus`, on Kafka. An async context manager; end all consumers before you leave it.

    Topics must exist (`topic_setup.py`), including that of dead letters. While the cluster cannot
    be reached, everything waits. Handlers run at least once; what they return is published exactly
    once, in one transaction with the commit of the handled message. After a crash within a
    transaction, readers of its topics wait until the cluster aborts it, some 10 to 20 s.

    A message that kills the process that handles it is dead-lettered after three deaths
    (`custody.py`). Attempts count from one again after a crash.
    """

    def __init__(self, cluster: KafkaCluster) -> None:
        self._cluster = cluster
        self._reach = Connectivity(cluster.servers)
        self._producer = Producer(cluster, reach=self._reach)
        self._trials = Trials()

    async def __aenter__(self) -> Self:
        await self._producer.__aenter__()
        return self

    async def __aexit__(self, *raised: object) -> None:
        await self._producer.__aexit__(*raised)

    async def publish(self, topic: str, message: Message) -> None:
        """Publish a message. Raises TopicMissing in addition to the errors of the port."""
        while True:
            try:
                sent = self._producer.send(topic, message.key, message.value, message.headers)
            except Unavailable:
                await asyncio.sleep(_AGAIN_S)  # until some of what waits is sent
            else:
                break
        await sent

    async def consume(
        self, topic: str, group: str, handler: Handler, *, concurrency: int = 1
    ) -> None:
        """Consume a topic until cancelled.

        Raises:
            TopicMissing: The topic, or that of dead letters, does not exist.
            Unavailable: The topic cannot be read, or dead letters cannot be written, permanently.
        """
        for each in (topic, Topic.DEAD_LETTERS):
            await self._producer.require(each)

        async def checked(message: Message) -> Sequence[Outgoing]:
            outgoing = await handler(message) or ()
            await self._check(outgoing)
            return outgoing

        async with (
            Transactions(self._cluster) as transactions,
            Subscription(
                self._cluster, [topic], group, tells_ends=True, reach=self._reach
            ) as subscription,
        ):
            consumption = Consumption(
                subscription, transactions, group, checked, concurrency, self._trials
            )
            await consumption.run()

    async def _check(self, outgoing: Sequence[Outgoing]) -> None:
        """Raise to the handler what can be checked before a transaction, which fails as a whole."""
        limit = self._cluster.message_bytes
        for topic, message in outgoing:
            size = message_bytes(message.key, message.value, message.headers)
            if size > limit:
                raise MessageTooLarge(topic, size, limit)
            await self._producer.require(topic)
