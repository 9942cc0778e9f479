"""The bus in memory: for one process, for tests, and for a demo without Kafka.

A topic holds each message until every consumer group has handled it, and after that the last few,
so that a group that joins late still starts near the beginning, as with a log. Within a group at
most one handler works on a key at a time, which keeps the order of a key's messages.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from functools import partial

from kairos.cluster.bus.delivery import Delivery, Undeliverable, dead_letter
from kairos.cluster.bus.envelope import message_bytes
from kairos.core import Handler, Message, MessageTooLarge, Outgoing, Topic

_HANDLED_KEPT = 1_000  # messages per topic, for groups that come late

log = logging.getLogger(__name__)


class MemoryBus:
    """The port `Bus`, in memory. Nothing outlives the process.

    While a message is being redelivered, later messages of its key wait. A message whose handler
    was cancelled is delivered to the next consumer of its group, with the same attempt number.
    """

    def __init__(self, *, topic_messages: int = 10_000, message_bytes: int = 1 << 20) -> None:
        self._topic_messages = topic_messages
        self._message_bytes = message_bytes
        self._topics: dict[str, _Topic] = {}

    async def publish(self, topic: str, message: Message) -> None:
        self._check_size(topic, message)
        into = self._topic(topic)
        await into.room.acquire()
        into.append(message)

    async def consume(
        self, topic: str, group: str, handler: Handler, *, concurrency: int = 1
    ) -> None:
        async with asyncio.TaskGroup() as workers:
            for _ in range(concurrency):
                workers.create_task(self._work(topic, group, handler))

    async def _work(self, topic: str, group: str, handler: Handler) -> None:
        source = self._topic(topic)
        share = source.group(group)
        while True:
            key = await share.ready.get()
            delivery = share.queues[key][0]
            try:
                for other, outgoing in await delivery.perform(partial(self._checked, handler)):
                    await self.publish(other, outgoing)
            except asyncio.CancelledError:
                share.ready.put_nowait(key)
                raise
            except Undeliverable as error:
                await self._bury(topic, group, delivery.message, str(error))
            share.remove_first(key)
            source.done(delivery.entry)

    async def _checked(self, handler: Handler, message: Message) -> Sequence[Outgoing]:
        outgoing = await handler(message) or ()
        for topic, each in outgoing:
            self._check_size(topic, each)
        return outgoing

    def _check_size(self, topic: str, message: Message) -> None:
        size = message_bytes(message.key, message.value, message.headers)
        if size > self._message_bytes:
            raise MessageTooLarge(topic, size, self._message_bytes)

    async def _bury(self, topic: str, group: str, message: Message, reason: str) -> None:
        letter = dead_letter(topic, group, message, reason)
        grave = self._topic(Topic.DEAD_LETTERS)
        # Publishing a dead letter never blocks, and dead letters are not dead-lettered again.
        if topic == Topic.DEAD_LETTERS or grave.room.locked():
            log.error("%s: the dead letter of %.100r is lost", group, message.key)
            return
        await grave.room.acquire()
        grave.append(letter)

    def _topic(self, name: str) -> "_Topic":
        if name not in self._topics:
            self._topics[name] = _Topic(self._topic_messages)
        return self._topics[name]


class _Entry:
    """A message in its topic, and the number of consumer groups that have not handled it yet."""

    __slots__ = ("message", "missing")

    def __init__(self, message: Message, missing: int) -> None:
        self.message = message
        self.missing = missing


class _Delivery(Delivery):
    """Delivery of a topic's entry to one consumer group."""

    __slots__ = ("entry",)

    def __init__(self, entry: _Entry) -> None:
        super().__init__(entry.message)
        self.entry = entry


class _Group:
    """Messages that one consumer group has not handled yet, by key, in the order of publication.

    A key is in `queues` while it has an unhandled message, and also in `ready` while no handler
    works on it.
    """

    def __init__(self) -> None:
        self.queues: dict[str, deque[_Delivery]] = {}
        self.ready: asyncio.Queue[str] = asyncio.Queue()

    def add(self, entry: _Entry) -> None:
        key = entry.message.key
        if key in self.queues:
            self.queues[key].append(_Delivery(entry))
        else:
            self.queues[key] = deque([_Delivery(entry)])
            self.ready.put_nowait(key)

    def remove_first(self, key: str) -> None:
        queue = self.queues[key]
        queue.popleft()
        if queue:
            self.ready.put_nowait(key)
        else:
            del self.queues[key]


class _Topic:
    """A topic: a bounded number of unhandled messages, and the last handled ones."""

    def __init__(self, limit: int) -> None:
        self.room = asyncio.Semaphore(limit)
        self._unhandled: dict[_Entry, None] = {}  # an ordered set
        self._handled: deque[_Entry] = deque(maxlen=_HANDLED_KEPT)
        self._groups: dict[str, _Group] = {}

    def append(self, message: Message) -> None:
        """Append a message. The caller must have acquired `room` for it."""
        entry = _Entry(message, missing=len(self._groups))
        self._unhandled[entry] = None
        for group in self._groups.values():
            group.add(entry)

    def group(self, name: str) -> _Group:
        """Return the consumer group with that name.

        A new one starts at the oldest retained message.
        """
        if name not in self._groups:
            self._groups[name] = group = _Group()
            # For each key, all handled messages are older than all unhandled ones.
            for entry in (*self._handled, *self._unhandled):
                entry.missing += 1
                group.add(entry)
        return self._groups[name]

    def done(self, entry: _Entry) -> None:
        """Note that one more group has handled the entry; free its place once all have."""
        entry.missing -= 1
        if entry.missing == 0 and entry in self._unhandled:
            del self._unhandled[entry]
            self._handled.append(entry)
            self.room.release()
