"""Group commit, without a cluster: what is sent, what is sent again, and what never is."""

import asyncio
import itertools

import pytest

from kairos.cluster import ReceivedMessage
from kairos.cluster.kafka import outbox as module
from kairos.cluster.kafka.items import Assigned
from kairos.cluster.kafka.outbox import HandledMessage, Outbox
from kairos.cluster.kafka.share import Share
from kairos.cluster.kafka.transactions import NotSent
from kairos.core import Message, Unavailable
from tests.support.loop_clock import moved_clock, turns

WHERE = ("t", 0)


class World:
    """The cluster as the outbox sees it, and one partition of ten messages in its hands."""

    def __init__(self, clock):
        self.clock = clock
        self.shares = {WHERE: Share(Assigned(*WHERE, 0, ""))}
        self.share = self.shares[WHERE]
        self.received = [ReceivedMessage(*WHERE, n, 0, f"{n}", b"", {}) for n in range(10)]
        self.share.is_open = True
        for each in self.received:
            self.share.add(each)
        assert list(self.share.begin()) == self.received
        self.sent = []  # transactions that took place: the values, and the state
        self.commits = []  # of offsets alone
        self.known = {}
        self.answers = itertools.repeat(None)
        self.before_answer = lambda: None
        self.rooms = []  # what is held when there is room for more
        self.outbox = Outbox(self, self, self.shares, self.bury, self.note_room)

    def bury(self, share, received, reason):
        letter = Message(key="k", value=f"dead {received.offset}: {reason}".encode())
        return HandledMessage(share, received, [("dead", letter)], is_dead=True)

    def note_room(self):
        self.rooms.append(self.outbox.held_bytes + self.share.held_bytes)

    def finish(self, *offsets):
        for n in offsets:
            self.outbox.add(
                HandledMessage(
                    self.share, self.received[n], [("out", Message(key="k", value=f"{n}".encode()))]
                )
            )

    # Subscription

    def group_metadata(self):
        return "metadata"

    async def commit(self, offsets):
        answer = next(self.answers)
        if answer is not None:
            raise answer
        self.commits.append(offsets[WHERE])
        self.known = dict(offsets)

    async def committed(self, partitions):
        return {where: state for where, state in self.known.items() if where in partitions}

    # Transactions

    async def perform(self, outgoing, offsets, group_metadata):
        await asyncio.sleep(0)
        self.before_answer()
        answer = next(self.answers)
        if answer is not None:
            raise answer
        self.take_place(outgoing, offsets)

    def take_place(self, outgoing, offsets):
        self.sent.append(([m.value.decode() for _, m in outgoing], offsets.get(WHERE)))
        self.known = dict(offsets)

    async def run(self):
        self.outbox.close()
        running = asyncio.create_task(self.outbox.run())
        await self.until(running.done)
        await running

    async def until(self, condition):
        """Let time pass."""
        for _ in range(1_000):
            if condition():
                return
            await self.clock.passes(module._AGAIN_S, steps=1)
        raise TimeoutError


@pytest.fixture
async def clock():
    with moved_clock(stands=True) as clock:
        yield clock


@pytest.fixture
async def world(clock):
    return World(clock)


async def running(world):
    task = asyncio.create_task(world.outbox.run())
    await asyncio.sleep(0)
    return task


async def test_what_took_place_although_the_answer_was_lost_is_not_sent_again(world):
    def lose_the_answer():
        world.take_place([("out", Message(key="k", value=b"0"))], {WHERE: (1, "")})
        world.before_answer = lambda: None

    world.before_answer = lose_the_answer
    world.answers = iter([NotSent("no answer", {}), None, None])
    task = await running(world)
    world.finish(0)
    await world.until(lambda: world.sent)
    await world.clock.passes(10.0)
    world.finish(1)
    await world.until(lambda: len(world.sent) == 2)
    task.cancel()
    assert [values for values, _ in world.sent] == [["0"], ["1"]]


async def test_what_is_of_a_partition_that_was_lost_does_not_go_out(world):
    def lose():
        world.share.is_lost = True
        del world.shares[WHERE]

    world.before_answer = lose
    world.answers = itertools.chain([NotSent("fenced", {})], itertools.repeat(None))
    task = await running(world)
    world.finish(0, 1)
    await world.until(lambda: WHERE not in world.shares)
    await world.clock.passes(10.0)
    task.cancel()
    assert world.sent == []
    world.finish(2)
    await world.run()
    assert world.sent == []


async def test_what_may_have_taken_place_is_not_sent_again_without_knowing(world):
    async def say_nothing(partitions):
        world.outbox.close()
        raise Unavailable("not now")

    world.committed = say_nothing
    world.answers = itertools.chain([NotSent("no answer", {})], itertools.repeat(None))
    world.finish(0)
    await world.run()
    assert world.sent == world.commits == []


async def test_nothing_is_committed_of_what_could_not_be_sent_in_the_end(world):
    world.answers = itertools.chain([NotSent("away", {})], itertools.repeat(None))
    world.finish(0)
    world.outbox.add(HandledMessage(world.share, world.received[1], ()))
    await world.run()
    assert world.sent == []
    assert world.commits == []


async def test_a_message_whose_consequences_are_refused_for_good_is_buried_and_others_go_out(world):
    world.answers = iter([NotSent("refused", {1: "no such topic"}), None, None])
    task = await running(world)
    world.finish(0, 1, 2)
    await world.until(lambda: world.sent)
    task.cancel()
    assert world.sent == [(["0", "dead 1: no such topic", "2"], (3, ""))]


async def test_dead_letters_that_are_refused_for_good_are_an_error_and_not_a_loss(world):
    world.answers = itertools.repeat(NotSent("refused", {0: "no such topic"}))
    task = await running(world)
    world.finish(0)
    await world.until(task.done)
    with pytest.raises(Unavailable, match="does not take dead letters: no such topic"):
        await task
    assert world.sent == world.commits == []


async def test_offsets_alone_are_committed_now_and_then_and_in_the_end(world):
    task = await running(world)
    for n in range(5):
        world.outbox.add(HandledMessage(world.share, world.received[n], ()))
        await turns()
    await world.until(lambda: len(world.commits) == 2)
    assert world.commits == [(1, ""), (5, "")]
    world.outbox.add(HandledMessage(world.share, world.received[5], ()))
    world.outbox.close()
    await task
    assert world.commits == [(1, ""), (5, ""), (6, "")]
    assert world.sent == []


async def test_a_commit_that_was_not_taken_is_made_later(world):
    world.answers = itertools.chain([Unavailable("later")], itertools.repeat(None))
    task = await running(world)
    world.outbox.add(HandledMessage(world.share, world.received[0], ()))
    await world.until(lambda: world.commits)
    task.cancel()
    assert world.commits == [(1, "")]


async def test_a_batch_is_bounded(world, monkeypatch):
    monkeypatch.setattr(module, "_BATCH", 3)
    world.finish(*range(10))
    await world.run()
    assert [len(values) for values, _ in world.sent] == [3, 3, 3, 1]
