"""A member of a group at work, without a cluster: rebalances, slowness, and its end."""

import asyncio
import contextlib

import pytest

from kairos.cluster import ReceivedMessage
from kairos.cluster.kafka.items import Assigned, Revoked
from kairos.cluster.kafka.kafka_bus import Consumption
from kairos.cluster.kafka.trials import Trials
from kairos.core import Message
from tests.support.buses import Seen, text
from tests.support.loop_clock import turns
from tests.support.waiting import until

HERE = ("t", 0)


class Cluster:
    """A subscription and its transactions. `tell` is what comes; `sent` what went out."""

    holder = ""  # the mark of this member

    def __init__(self):
        self._coming = asyncio.Queue()
        self.is_held = False
        self.sent = []
        self.states = {}
        self.sends = asyncio.Event()
        self.sends.set()

    def tell(self, *items):
        self._coming.put_nowait(list(items))

    async def batch(self):
        return await self._coming.get()

    def hold(self, is_held):
        self.is_held = is_held

    def group_metadata(self):
        return "metadata"

    async def commit(self, offsets):
        self.states.update(offsets)

    async def committed(self, partitions):
        return {where: self.states[where] for where in partitions if where in self.states}

    async def perform(self, outgoing, offsets, group_metadata):
        await self.sends.wait()
        self.sent += [(topic, text(message)) for topic, message in outgoing]
        self.states.update(offsets)


@pytest.fixture
async def cluster():
    return Cluster()


class Consuming:
    """A consumption that runs; it ends with the block."""

    def __init__(self, cluster, handler, concurrency=8):
        self.consumption = Consumption(cluster, cluster, "g", handler, concurrency, Trials())

    async def __aenter__(self):
        self.task = asyncio.create_task(self.consumption.run())
        return self

    async def __aexit__(self, *_):
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)
        assert not self.consumption._running


def message(offset, key="k", *, where=HERE, value=None):
    return ReceivedMessage(*where, offset, 0, key, (value or f"{offset}").encode(), {})


async def relay(received: Message):
    return [("out", received)]


class Gate:
    """A handler that waits for `open`, however often it is cancelled if it is `stubborn`."""

    def __init__(self, *, is_stubborn=False):
        self.is_open = asyncio.Event()
        self.began, self.cancelled = [], []
        self._is_stubborn = is_stubborn

    async def __call__(self, received: Message):
        self.began.append(text(received))
        while not self.is_open.is_set():
            try:
                await self.is_open.wait()
            except asyncio.CancelledError:
                self.cancelled.append(text(received))
                if not self._is_stubborn:
                    raise
        return [("out", received)]


async def test_a_key_that_comes_back_waits_for_the_handler_it_had_before(cluster):
    gate = Gate(is_stubborn=True)
    async with Consuming(cluster, gate):
        cluster.tell(Assigned(*HERE, 0, ""), message(0, value="a"))
        await until(lambda: gate.began)
        cluster.tell(Revoked(*HERE), Assigned(*HERE, 0, ""), message(0, value="a"))
        await until(lambda: gate.cancelled)
        await turns()
        assert gate.began == ["a"]
        gate.is_open.set()
        await until(lambda: cluster.sent)
    assert gate.began == ["a", "a"]
    assert cluster.sent == [("out", "a")]


async def test_messages_of_a_partition_that_was_lost_before_they_began_never_begin(cluster):
    gate = Gate()
    async with Consuming(cluster, gate, concurrency=1):
        cluster.tell(Assigned(*HERE, 0, ""), message(0, "a"), message(1, "b"))
        await until(lambda: gate.began)
        cluster.tell(Revoked(*HERE), Assigned("t", 1, 0, ""), message(0, "c", where=("t", 1)))
        gate.is_open.set()
        await until(lambda: cluster.sent)
    assert gate.began == ["0", "0"]
    assert list(cluster.states) == [("t", 1)]


async def test_what_another_member_has_done_is_not_done_again(cluster):
    first, second, seen = Cluster(), Cluster(), Seen()
    gate = Gate()

    async def wait_for_the_first(received: Message):
        return await (gate(received) if received.key == "0" else relay(received))

    async with Consuming(first, wait_for_the_first):
        first.tell(Assigned(*HERE, 0, ""), *(message(n, f"{n}") for n in range(4)))
        await until(lambda: len(first.sent) == 3)
    async with Consuming(second, seen) as consuming:
        second.tell(Assigned(*HERE, *first.states[HERE]), *(message(n) for n in range(5)))
        await seen.until("0", "4")
        await until(lambda: second.states.get(HERE) == (5, ""))
        assert not any(share.held_bytes for share in consuming.consumption._shares.values())
    assert seen.values == ["0", "4"]


async def test_a_handler_that_fails_because_it_was_cancelled_is_not_called_again(cluster):
    began = []

    async def fail_when_cancelled(received: Message):
        began.append(text(received))
        try:
            await asyncio.Event().wait()
        finally:
            raise ValueError("no connection")

    async with Consuming(cluster, fail_when_cancelled) as consuming:
        cluster.tell(Assigned(*HERE, 0, ""), message(0))
        await until(lambda: began)
        cluster.tell(Revoked(*HERE))
        await until(lambda: not consuming.consumption._running)
    assert began == ["0"]


async def test_a_message_whose_handler_returns_because_it_was_cancelled_is_not_done(cluster):
    began = asyncio.Event()

    async def return_when_cancelled(received: Message):
        if received.key == "quick":
            return await relay(received)
        began.set()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        return ()

    cluster.sends.clear()
    async with Consuming(cluster, return_when_cancelled) as consuming:
        cluster.tell(Assigned(*HERE, 0, ""), message(0, "quick"), message(1, "slow"))
        await began.wait()
        consuming.task.cancel()
        await until(lambda: not consuming.consumption._running)
        cluster.sends.set()
    assert cluster.states == {HERE: (1, "")}


async def test_whatever_goes_wrong_in_reading_ends_it_with_that_error(cluster):
    async def break_down():
        raise ValueError("broken")

    cluster.batch = break_down
    with pytest.raises(ValueError, match="broken"):
        await Consumption(cluster, cluster, "g", relay, 1, Trials()).run()
