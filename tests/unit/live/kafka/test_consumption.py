"""A member of a group at work, without a cluster: rebalances, slowness, and its end."""

import asyncio
import contextlib

import pytest

from kairos.live.kafka import consumption as module
from kairos.live.kafka import share
from kairos.live.kafka.consumption import Consumption
from kairos.live.kafka.items import Assigned, Passed, ReceivedMessage, Revoked
from kairos.live.kafka.trials import Trials
from kairos.ports import Message
from kairos.topics import DEAD_LETTERS
from tests.support.buses import Seen, fail, text

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


async def until(condition):
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.001)


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


async def test_what_comes_is_handled_and_its_consequences_go_out(cluster):
    async with Consuming(cluster, relay):
        cluster.tell(Assigned(*HERE, -1001, ""), message(0), message(2), Passed(*HERE, 5))
        await until(lambda: cluster.states.get(HERE) == (5, ""))
    assert cluster.sent == [("out", "0"), ("out", "2")]


async def test_handlers_of_a_partition_that_was_revoked_are_cancelled_and_others_are_not(cluster):
    gate, there = Gate(), ("t", 1)
    async with Consuming(cluster, gate):
        cluster.tell(Assigned(*HERE, 0, ""), Assigned(*there, 0, ""))
        cluster.tell(message(0, value="here"), message(0, where=there, value="there"))
        await until(lambda: len(gate.began) == 2)
        cluster.tell(Revoked(*HERE))
        await until(lambda: gate.cancelled == ["here"])
        gate.is_open.set()
        await until(lambda: cluster.sent)
    assert cluster.sent == [("out", "there")]
    assert HERE not in cluster.states


async def test_what_finishes_after_its_partition_was_revoked_does_not_go_out(cluster):
    gate = Gate(is_stubborn=True)
    async with Consuming(cluster, gate) as consuming:
        cluster.tell(Assigned(*HERE, 0, ""), message(0))
        await until(lambda: gate.began)
        cluster.tell(Revoked(*HERE))
        await until(lambda: gate.cancelled)
        gate.is_open.set()
        await until(lambda: not consuming.consumption._running)
    assert cluster.sent == []
    assert cluster.states == {}


async def test_a_key_that_comes_back_waits_for_the_handler_it_had_before(cluster):
    gate = Gate(is_stubborn=True)
    async with Consuming(cluster, gate):
        cluster.tell(Assigned(*HERE, 0, ""), message(0, value="a"))
        await until(lambda: gate.began)
        cluster.tell(Revoked(*HERE), Assigned(*HERE, 0, ""), message(0, value="a"))
        await until(lambda: gate.cancelled)
        await asyncio.sleep(0.01)
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


async def test_reading_is_held_while_too_much_is_in_hand_and_goes_on_afterwards(
    cluster, monkeypatch
):
    monkeypatch.setattr(module, "_HELD_BYTES", 3 * share._EACH_BYTES)
    gate = Gate()
    async with Consuming(cluster, gate, concurrency=1):
        cluster.tell(Assigned(*HERE, 0, ""), *(message(n) for n in range(3)))
        await until(lambda: gate.began)
        cluster.tell(message(3))
        await until(lambda: cluster.is_held)
        gate.is_open.set()
        await until(lambda: len(cluster.sent) == 4 and not cluster.is_held)


async def test_reading_goes_on_once_what_waited_to_be_sent_is_on_its_way(cluster, monkeypatch):
    monkeypatch.setattr(module, "_HELD_BYTES", 1_500)
    cluster.sends.clear()
    async with Consuming(cluster, relay) as consuming:
        cluster.tell(Assigned(*HERE, 0, ""), message(0))
        await until(lambda: consuming.consumption._outbox._woken.is_set() is False)
        cluster.tell(message(1), message(2))
        await until(lambda: cluster.is_held and not consuming.consumption._running)
        cluster.sends.set()
        await until(lambda: not cluster.is_held)


async def test_one_key_with_many_messages_holds_reading_before_the_watermark_overflows(cluster):
    gate = Gate()
    async with Consuming(cluster, gate):
        cluster.tell(Assigned(*HERE, 0, ""), *(message(n) for n in range(1_500)))
        await until(lambda: cluster.is_held)
        gate.is_open.set()
        await until(lambda: cluster.states.get(HERE) == (1_500, ""))
        assert not cluster.is_held
    assert [int(value) for _, value in cluster.sent] == list(range(1_500))


async def test_no_more_handlers_run_than_may(cluster):
    gate = Gate()
    async with Consuming(cluster, gate, concurrency=2):
        cluster.tell(Assigned(*HERE, 0, ""), *(message(n, f"{n}") for n in range(5)))
        await until(lambda: len(gate.began) == 2)
        await asyncio.sleep(0.01)
        assert len(gate.began) == 2
        gate.is_open.set()
        await until(lambda: len(cluster.sent) == 5)


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


async def test_tombstones_come_as_empty_messages(cluster):
    seen = Seen()
    async with Consuming(cluster, seen):
        cluster.tell(Assigned(*HERE, 0, ""), ReceivedMessage(*HERE, 0, 0, "k", None, {}))
        await seen.until("")


async def test_dead_letters_are_buried_once(cluster, caplog):
    grave = (DEAD_LETTERS, 0)
    async with Consuming(cluster, fail):
        cluster.tell(Assigned(*HERE, 0, ""), message(0), Assigned(*grave, 0, ""))
        cluster.tell(message(7, where=grave))
        await until(lambda: len(cluster.states) == 2)
    assert cluster.sent == [(DEAD_LETTERS, "0")]
    assert cluster.states == {HERE: (1, ""), grave: (8, "")}
    assert "the dead letter of 'k' is lost" in caplog.text


async def test_what_was_finished_when_it_is_cancelled_goes_out_and_what_was_not_does_not(cluster):
    gate = Gate()
    finished = asyncio.Event()

    async def wait_for_some(received: Message):
        if received.key == "slow":
            return await gate(received)
        finished.set()
        return await relay(received)

    cluster.sends.clear()
    async with Consuming(cluster, wait_for_some) as consuming:
        cluster.tell(Assigned(*HERE, 0, ""), message(0, "slow"), message(1, "quick"))
        await finished.wait()
        consuming.task.cancel()
        await until(lambda: gate.cancelled)
        assert cluster.sent == []
        cluster.sends.set()
    assert cluster.sent == [("out", "1")]
    assert cluster.states[HERE][0] == 0


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


async def test_a_handler_that_will_not_end_does_not_keep_the_member_from_leaving(
    cluster, monkeypatch, caplog
):
    monkeypatch.setattr(module, "_LEAVE_S", 0.1)
    gate = Gate(is_stubborn=True)
    consuming = Consuming(cluster, gate)
    task = asyncio.create_task(consuming.consumption.run())
    cluster.tell(Assigned(*HERE, 0, ""), message(0))
    await until(lambda: gate.began)
    task.cancel()
    async with asyncio.timeout(60):
        await asyncio.gather(task, return_exceptions=True)
    assert "left while 1" in caplog.text
    gate.is_open.set()
    await until(lambda: not consuming.consumption._running)
    assert cluster.sent == []


async def test_whatever_goes_wrong_in_reading_ends_it_with_that_error(cluster):
    async def break_down():
        raise ValueError("broken")

    cluster.batch = break_down
    with pytest.raises(ValueError, match="broken"):
        await Consumption(cluster, cluster, "g", relay, 1, Trials()).run()
