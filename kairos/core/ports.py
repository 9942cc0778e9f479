"""What the core needs of the world. Each port has a live body and a simulated or in-memory one."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Protocol

import msgspec

from kairos.core.events import Dispatch, Event, Refuse


class Clock(Protocol):
    """Microseconds that never run backwards."""

    def now(self) -> int: ...


class FactSink(Clock, Protocol):
    """Where facts are reported: the runtime, or a way to the one elsewhere."""

    def feed(self, event: Event) -> None:
        """Raises KairosError: the request that arrived is refused."""


class Engine(Protocol):
    """Performs the balancer's commands. Returns at once; what comes of it returns as facts."""

    def dispatch(self, command: Dispatch) -> None: ...

    def refuse(self, command: Refuse) -> None: ...


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """What travels on the bus: a JSON value with string headers.

    `key` orders: messages of one key are handled in the order in which they were published.
    """

    key: str
    value: bytes
    headers: Mapping[str, str] = {}


Outgoing = tuple[str, Message]  # a topic, and what goes there
Handler = Callable[[Message], Awaitable[Sequence[Outgoing] | None]]


class Bus(Protocol):
    """Named topics of messages, delivered at least once.

    A message is done when a handler of each consumer group returned. What it returned is published
    together with that: where the bus can (Kafka), both happen or neither, so that a message that is
    handled again after a crash has its consequences once. A handler that raises is
    called again with the same message, a bounded number of times; then the message goes to the
    topic `kairos.dead-letters` with the reason in its headers.
    """

    async def publish(self, topic: str, message: Message) -> None:
        """Return once the bus has accepted the message; wait while the topic is full.

        Raises:
            MessageTooLarge: value and headers are over the bus's limit.
        """

    async def consume(
        self, topic: str, group: str, handler: Handler, *, concurrency: int = 1
    ) -> None:
        """Handle the group's share of a topic until cancelled, up to `concurrency` keys at once."""
