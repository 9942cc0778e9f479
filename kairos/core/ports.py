"""Ports of the core to its environment, each with a live and a simulated or in-memory version."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Protocol

import msgspec

from kairos.core.events import Dispatch, Event, Refuse


class Clock(Protocol):
    """Clock in microseconds that never decreases."""

    def now(self) -> int: ...


class FactSink(Clock, Protocol):
    """Receiver of facts: the runtime, or a proxy of a remote one."""

    def feed(self, event: Event) -> None:
        """Report a fact.

        Raises:
            KairosError: the arriving request is refused.
        """


class Engine(Protocol):
    """Executor of the balancer's commands. Returns at once; results come back as facts."""

    def dispatch(self, command: Dispatch) -> None: ...

    def refuse(self, command: Refuse) -> None: ...


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """Message on the bus: a JSON value with string headers.

    Messages with the same `key` are handled in the order in which they were published.
    """

    key: str
    value: bytes
    headers: Mapping[str, str] = {}


Outgoing = tuple[str, Message]  # a topic, and a message to publish there
Handler = Callable[[Message], Awaitable[Sequence[Outgoing] | None]]


class Bus(Protocol):
    """Named topics of messages, delivered at least once.

    A message is done when a handler of each consumer group has returned. Its result is published
    together with that: if the bus supports it (Kafka), both happen or neither, so that a message
    that is handled again after a crash has its effects once. If a handler raises, it is called
    again with the same message, a limited number of times; then the message is moved to the topic
    `kairos.dead-letters` with the reason in its headers.
    """

    async def publish(self, topic: str, message: Message) -> None:
        """Return once the bus has accepted the message; wait while the topic is full.

        Raises:
            MessageTooLarge: value and headers exceed the bus's limit.
        """

    async def consume(
        self, topic: str, group: str, handler: Handler, *, concurrency: int = 1
    ) -> None:
        """Handle the group's share of a topic until cancelled, up to `concurrency` keys at once."""
