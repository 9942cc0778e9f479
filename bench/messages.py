"""Messages between agents, on any bus: how long one takes to the next agent, and how many pass."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from itertools import count
from typing import Any
from unittest import mock

from bench.load import Broken
from bench.report import percentile
from bench.scenarios import Measured
from kairos.cluster import KafkaBus, KafkaCluster, MemoryBus
from kairos.cluster.kafka.transactions import Transactions
from kairos.core import Bus, Message, Outgoing

CONCURRENCY = 64  # that `kairos agents run` gives each agent
PUBLISHERS = 256  # at once, to find out how many messages pass
TEXT = b"w" * 1024
LIMIT_S = 120.0
WARM_UP = 500

IN_FLIGHT = {1: "one at a time", 64: "64 at once"}
PUBLISHED = "{} publish to next agent, {}"
HANDED_ON = "{} handler to next agent, {}"
COMMIT = "p50 handler to its transaction's end, one at a time"
AFTER_COMMIT = "p50 transaction's end to next agent, one at a time"
RATE = "messages published and handled, one core"
RELAYED_RATE = "messages published, handed on and handled, one core"


class Trip:
    """When a message came where, in nanoseconds of CLOCK_MONOTONIC."""

    __slots__ = ("arrived", "began", "committed", "ended", "left")

    def __init__(self) -> None:
        self.began = time.monotonic_ns()
        self.arrived = 0  # at the first agent
        self.left = 0  # it, as what its handler returned
        loop = asyncio.get_running_loop()
        self.committed: asyncio.Future[int] = loop.create_future()  # that, where a bus commits
        self.ended: asyncio.Future[int] = loop.create_future()  # its way, at the second agent


class Relay:
    """Two agents, the first of which hands every message on to the second.

    `commits`: what handlers return is published by transactions, of which `note_commit` tells.
    """

    def __init__(self, bus: Bus, inboxes: Sequence[str], *, commits: bool = False) -> None:
        self._bus = bus
        self._commits = commits
        self._first, self._second = inboxes
        self._trips: dict[str, Trip] = {}
        self._names = (str(number) for number in count())

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as agents:
            for inbox, handler in ((self._first, self._hand_on), (self._second, self._end)):
                consume = self._bus.consume(inbox, inbox, handler, concurrency=CONCURRENCY)
                agents.create_task(consume)

    async def _hand_on(self, message: Message) -> Sequence[Outgoing]:
        trip = self._trips[message.key]
        trip.arrived = trip.left = time.monotonic_ns()
        return [(self._second, message)]

    async def _end(self, message: Message) -> None:
        self._trips[message.key].ended.set_result(time.monotonic_ns())

    def note_commit(self, outgoing: Sequence[Outgoing]) -> None:
        """What a handler returned is published."""
        now_ns = time.monotonic_ns()
        for _, message in outgoing:
            trip = self._trips.get(message.key)
            if trip is not None and not trip.committed.done():
                trip.committed.set_result(now_ns)

    async def latency(self, number: int, in_flight: int) -> Measured:
        """Send messages through both agents, each when one before it is through. Times in µs."""
        trips = await self._send(self._first, number, in_flight, waits=True)
        legs = {
            PUBLISHED: [trip.arrived - trip.began for trip in trips],
            HANDED_ON: [trip.ended.result() - trip.left for trip in trips],
        }
        measured = {
            name.format(f"p{percent}", IN_FLIGHT[in_flight]): percentile(took, percent) / 1e3
            for name, took in legs.items()
            for percent in (50, 99)
        }
        if self._commits and in_flight == 1:
            until = [trip.committed.result() - trip.left for trip in trips]
            after = [trip.ended.result() - trip.committed.result() for trip in trips]
            measured |= {
                COMMIT: percentile(until, 50) / 1e3,
                AFTER_COMMIT: percentile(after, 50) / 1e3,
            }
        return measured

    async def rates(self, number: int) -> Measured:
        return {
            RATE: await self._per_s(self._second, number),
            RELAYED_RATE: await self._per_s(self._first, number),
        }

    async def _per_s(self, to: str, number: int) -> float:
        trips = await self._send(to, number, PUBLISHERS, waits=False)
        took_ns = max(trip.ended.result() for trip in trips) - trips[0].began
        return number / took_ns * 1e9

    async def _send(self, to: str, number: int, at_once: int, *, waits: bool) -> list[Trip]:
        """`waits`: until a message is through, before another is sent in its place."""
        trips: list[Trip] = []

        async def send(names: Iterator[str]) -> None:
            for name in names:
                trips.append(trip := Trip())
                self._trips[name] = trip
                await self._bus.publish(to, Message(key=name, value=TEXT))
                if waits:
                    await trip.ended
                if waits and self._commits:
                    await trip.committed

        # Of one iterator: each takes the next name when it is ready for it.
        names = (name for _, name in zip(range(number), self._names, strict=False))
        try:
            async with asyncio.timeout(LIMIT_S):
                async with asyncio.TaskGroup() as senders:
                    for _ in range(at_once):
                        senders.create_task(send(names))
                for trip in trips:
                    await trip.ended
        except TimeoutError:
            raise Broken(f"not all of {number} messages came through in {LIMIT_S:g} s") from None
        self._trips.clear()
        return trips


async def measure(relay: Relay, trips: int, messages: int) -> Measured:
    """`trips`: messages one at a time; four times as many where there are more at once."""
    measured = await relay.latency(trips, 1)
    measured |= await relay.latency(4 * trips, 64)
    return measured | await relay.rates(messages)


@asynccontextmanager
async def relays(
    connection: KafkaCluster, inboxes: Sequence[str]
) -> AsyncIterator[Mapping[str, Relay]]:
    """By the bus that they use. They have worked for a while."""
    async with KafkaBus(connection) as bus, asyncio.TaskGroup() as agents:
        made = {"memory": Relay(MemoryBus(), inboxes), "kafka": Relay(bus, inboxes, commits=True)}
        with _commits_told_to(made["kafka"]):
            working = [agents.create_task(relay.run()) for relay in made.values()]
            for relay in made.values():
                await relay.latency(WARM_UP, 64)
            yield made
            for each in working:
                each.cancel()


@contextmanager
def _commits_told_to(relay: Relay) -> Iterator[None]:
    """The relay hears of each transaction that has taken place."""
    perform = Transactions.perform

    async def performed(
        transactions: Transactions, outgoing: Sequence[Outgoing], *rest: Any
    ) -> None:
        await perform(transactions, outgoing, *rest)
        relay.note_commit(outgoing)

    with mock.patch.object(Transactions, "perform", performed):
        yield
