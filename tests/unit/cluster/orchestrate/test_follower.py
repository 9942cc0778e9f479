"""What an orchestrator publishes and commits, and when; without a Kafka."""

import asyncio
import logging

import msgspec

from kairos.cluster import POOL_HEADER, ReceivedMessage
from kairos.cluster.orchestrate import follower as members
from kairos.cluster.orchestrate.follower import SAVE_S, Follower
from kairos.cluster.orchestrate.following import Following
from kairos.cluster.pool.messages import EPOCH
from kairos.core import (
    SECOND,
    Arrived,
    Dispatch,
    Finished,
    ProfilesLearnt,
    Record,
    Topic,
    Unavailable,
    WorkflowEnded,
)
from tests.support.simulate import build

IDLE_US = 60 * SECOND


class Kafka:
    """Takes what is sent and committed, in one list; while it is away, no commit."""

    def __init__(self):
        self.told, self.is_away = [], False

    def send(self, topic, key, value, headers=None):
        self.told.append((topic, key))
        future = asyncio.get_running_loop().create_future()
        future.set_result(len(self.told))
        return future

    async def commit(self, offsets):
        if self.is_away:
            raise Unavailable("the bus did not take a commit")
        self.told.append(("commit", offsets[Topic.EVENTS, 0]))


def a_member(kafka, idle_us=IDLE_US):
    made = Follower(None, kafka, None, idle_us=idle_us)
    made.following = Following(ProfilesLearnt(), -1001, None, idle_us=idle_us)
    made._has_read_all = True
    return made


def records(number, *, ends=True):
    """Of a workflow of one call."""
    request = build.request(f"r{number}", workflow_id=f"w{number}", app="app", agent="x", at=1)
    yield Record(1, Arrived(request), (Dispatch(f"r{number}", "a"),))
    yield Record(SECOND, Finished(f"r{number}"))
    if ends:
        yield Record(SECOND, WorkflowEnded("default", f"w{number}"))


async def take(member, *told):
    for record in told:
        offset = max(0, member.following._next) + (member.following._next < 0)
        value = msgspec.json.encode(record)
        headers = {POOL_HEADER: "default", EPOCH: "0"}
        await member._take(ReceivedMessage(Topic.EVENTS, 0, offset, record.at, "", value, headers))
    member._has_read_all = True


async def test_it_commits_only_what_has_been_published_and_all_of_that():
    kafka = Kafka()
    member = a_member(kafka)
    for number in range(3):  # of which the third is nothing that must be published at once
        await take(member, *records(number))
        await member._learn(kafka, whole=False)
    assert all(topic == Topic.PROFILES for topic, _ in kafka.told)
    kafka.told.clear()

    await member._learn(kafka, whole=True)

    *published, (what, (offset, progress)) = kafka.told
    assert (Topic.PROFILES, '["profile","default","app","x"]') in published
    assert (what, offset, msgspec.json.decode(progress)["learnt"]) == ("commit", 10, 10)
    profile, _ = member.estimates.published(("default", "app", "x"))
    assert profile.samples == 3


async def test_time_in_which_kafka_did_not_answer_is_no_silence():
    kafka = Kafka()
    member = a_member(kafka)
    await take(member, *records(1, ends=False))
    now = asyncio.get_running_loop().time
    await member._learn(kafka, whole=True)

    for _ in range(20):
        kafka.is_away = True
        await member._learn(kafka, whole=True)
        kafka.is_away = False
        await member._learn(kafka, whole=True)
    member._committed_at = now() - 1_000  # the commit took that long
    await member._learn(kafka, whole=True)
    assert len(member.orchestrator) == 1

    for _ in range(IDLE_US // SECOND // int(SAVE_S)):
        member._committed_at = now() - SAVE_S
        await member._learn(kafka, whole=True)
    assert len(member.orchestrator) == 0


async def test_time_in_which_facts_come_is_no_silence():
    kafka = Kafka()
    member = a_member(kafka, idle_us=int(1.5 * SAVE_S * SECOND))
    await take(member, *records(1, ends=False))
    now = asyncio.get_running_loop().time

    for _ in range(20):
        await take(member, Record(SECOND, WorkflowEnded("default", "another")))
        for _ in range(2):
            member._committed_at = now() - SAVE_S
            await member._learn(kafka, whole=True)

    assert len(member.orchestrator) == 1


async def test_what_could_not_be_learnt_is_dropped_and_said(monkeypatch, caplog):
    async def fails(learner, *, whole):
        raise ZeroDivisionError

    kafka = Kafka()
    member = a_member(kafka)
    await take(member, *records(1))
    monkeypatch.setattr(members, "learn_once", fails)
    with caplog.at_level(logging.ERROR):
        await member._learn(kafka, whole=True)

    assert "are not learnt from" in caplog.text
    assert [what for what, _ in kafka.told] == ["commit"]


async def test_told_to_stop_amid_learning_it_ends_that_first():
    kafka, began, may_end = Kafka(), asyncio.Event(), asyncio.Event()
    member = a_member(kafka)

    async def learning():
        began.set()
        await may_end.wait()
        kafka.told.append("ended")

    finishing = asyncio.create_task(member._finish(learning()))
    await began.wait()
    finishing.cancel()
    await asyncio.sleep(0)
    may_end.set()
    [stopped] = await asyncio.gather(finishing, return_exceptions=True)

    assert isinstance(stopped, asyncio.CancelledError)
    assert kafka.told == ["ended"]
    assert member.following is not None


async def test_where_learning_takes_too_long_to_end_nothing_is_committed_any_more(monkeypatch):
    monkeypatch.setattr(members, "_LEAVE_S", 0)
    member, began = a_member(Kafka()), asyncio.Event()

    async def learning():
        began.set()
        await asyncio.Event().wait()

    finishing = asyncio.create_task(member._finish(learning()))
    await began.wait()
    finishing.cancel()
    await asyncio.gather(finishing, return_exceptions=True)

    assert member.following is None
