"""The bus in memory: for one process, for tests, and for a demo without Kafka.

A topic holds each message until every consumer group has handled it, and after that the last few,
so that a group which comes late still begins near the start, as with a log. Within a group a key
is in the hands of one handler at a time; that alone keeps the order of a key.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from functools import partial

from kairos.cluster.bus.delivery import Delivery, Undeliverable, dead_letter
from kairos.core.errors import MessageTooLarge
from kairos.core.ports import Handler, Message, Outgoing
from kairos.core.topics import DEAD_LETTERS

_HANDLED_KEPT = 1_000  # messages per topic, for groups that come late

log = logging.getLogger(__name__)


class MemoryBus:
    """The port `Bus`, in memory. Nothing outlives the process: not a message that kills it either.

    A key's next message waits while one before it is being redelivered. A message whose handler
    was cancelled goes to the next consumer of its group, with the attempt it had.
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
        if (size := _size(message)) > self._message_bytes:
            raise MessageTooLarge(topic, size, self._message_bytes)

    async def _bury(self, topic: str, group: str, message: Message, reason: str) -> None:
        letter = dead_letter(topic, group, message, reason)
        grave = self._topic(DEAD_LETTERS)
        # The living never wait for room among the dead, nor are the dead buried twice.
        if topic == DEAD_LETTERS or grave.room.locked():
            log.error("%s: the dead letter of %.100r is lost", group, message.key)
            return
        await grave.room.acquire()
        grave.append(letter)

    def _topic(self, name: str) -> "_Topic":
        if name not in self._topics:
            self._topics[name] = _Topic(self._topic_messages)
        return self._topics[name]


def _size(message: Message) -> int:
    headers = sum(len(name) + len(value.encode()) for name, value in message.headers.items())
    return len(message.key.encode()) + len(message.value) + headers


class _Entry:
    """A message in its topic, and how many of the topic's groups have yet to handle it."""

    __slots__ = ("message", "missing")

    def __init__(self, message: Message, missing: int) -> None:
        self.message = message
        self.missing = missing


class _Delivery(Delivery):
    """An entry on its way to one group."""

    __slots__ = ("entry",)

    def __init__(self, entry: _Entry) -> None:
        super().__init__(entry.message)
        self.entry = entry


class _Group:
    """What one consumer group has yet to handle, by key, in the order of publication.

    A key is in `queues` while it has an unhandled message, and in `ready` while besides no handler
    is at work on it.
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
    """A bounded number of unhandled messages, and the last handled ones."""

    def __init__(self, limit: int) -> None:
        self.room = asyncio.Semaphore(limit)
        self._unhandled: dict[_Entry, None] = {}  # an ordered set
        self._handled: deque[_Entry] = deque(maxlen=_HANDLED_KEPT)
        self._groups: dict[str, _Group] = {}

    def append(self, message: Message) -> None:
        """Add a message, for which `room` has been acquired."""
        entry = _Entry(message, missing=len(self._groups))
        self._unhandled[entry] = None
        for group in self._groups.values():
            group.add(entry)

    def group(self, name: str) -> _Group:
        """The group of that name. A new one starts at the oldest message still held."""
        if name not in self._groups:
            self._groups[name] = group = _Group()
            # Of one key all handled messages are older than all unhandled ones.
            for entry in (*self._handled, *self._unhandled):
                entry.missing += 1
                group.add(entry)
        return self._groups[name]

    def done(self, entry: _Entry) -> None:
        """One group has handled the entry."""
        entry.missing -= 1
        if entry.missing == 0 and entry in self._unhandled:
            del self._unhandled[entry]
            self._handled.append(entry)
            self.room.release()
