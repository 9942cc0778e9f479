"""What tests of a bus work with, whichever bus it is."""

import asyncio
from collections.abc import Sequence
from contextlib import asynccontextmanager

import msgspec

from kairos.core import Bus, Handler, Message, Outgoing, Topic

TIMEOUT_S = 60


class Apart:
    """A bus that others may use too, as if it were this test's alone. Topics, groups and keys get a
    prefix; of the dead letters, which all share, only its own are seen."""

    def __init__(self, body: Bus, prefix: str) -> None:
        self.body = body
        self._prefix = prefix

    def named(self, name: str) -> str:
        return name if name == Topic.DEAD_LETTERS else f"{self._prefix}.{name}"

    def group(self, topic: str, group: str) -> str:
        return f"{self._prefix}.{topic}.{group}"

    def key(self, key: str) -> str:
        return f"{self._prefix}:{key}"

    def _ours(self, message: Message) -> Message:
        return msgspec.structs.replace(message, key=self.key(message.key))

    async def publish(self, topic: str, message: Message) -> None:
        await self.body.publish(self.named(topic), self._ours(message))

    async def consume(self, topic, group, handler, *, concurrency=1) -> None:
        async def handle(message: Message):
            prefix, _, key = message.key.partition(":")
            if prefix != self._prefix:
                return ()
            outgoing = await handler(msgspec.structs.replace(message, key=key)) or ()
            return [(self.named(other), self._ours(each)) for other, each in outgoing]

        names = self.named(topic), self.group(topic, group)
        await self.body.consume(*names, handle, concurrency=concurrency)


def text(message: Message) -> str:
    return message.value.decode()


async def publish(bus: Bus, *values: str, key: str = "k", topic: str = "t") -> None:
    for value in values:
        await bus.publish(topic, Message(key=key, value=value.encode()))


@asynccontextmanager
async def consuming(bus: Bus, handler: Handler, *, topic="t", group="g", concurrency=1):
    """A consumer that fails ends the block at once, and says why."""
    async with asyncio.TaskGroup() as tasks:
        consumer = tasks.create_task(bus.consume(topic, group, handler, concurrency=concurrency))
        yield consumer
        consumer.cancel()


class Seen:
    """A handler that keeps what it was called with, and lets a test wait for it."""

    def __init__(self, work: Handler | None = None) -> None:
        self.messages: list[Message] = []
        self._work = work
        self._changed = asyncio.Condition()

    async def __call__(self, message: Message) -> Sequence[Outgoing] | None:
        async with self._changed:
            self.messages.append(message)
            self._changed.notify_all()
        return await self._work(message) if self._work else None

    async def until_called(self) -> None:
        async with asyncio.timeout(TIMEOUT_S), self._changed:
            await self._changed.wait_for(lambda: self.messages)

    async def until(self, *values: str) -> None:
        async with asyncio.timeout(TIMEOUT_S), self._changed:
            await self._changed.wait_for(lambda: set(values) <= set(self.values))

    @property
    def values(self) -> list[str]:
        return [text(message) for message in self.messages]

    @property
    def firsts(self) -> list[str]:
        """The values in the order of their first coming."""
        return list(dict.fromkeys(self.values))


async def fail(message: Message) -> None:
    raise ValueError(f"cannot stand {text(message)}")


async def until_logged(caplog, text: str) -> None:
    async with asyncio.timeout(TIMEOUT_S):
        while text not in caplog.text:
            await asyncio.sleep(0.05)
