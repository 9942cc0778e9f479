"""A pool on several hosts: with clocks of their own, other settings, and messages from anybody."""

import re

import pytest

from kairos.cluster import ReceivedMessage
from kairos.cluster.kafka.items import Assigned
from kairos.cluster.pool.bus_calls import ANSWER_BYTES
from kairos.cluster.pool.member import _Superseded
from kairos.core import SECOND, Arrived, Finished, Topic, UpstreamFailed, WorkflowEnded
from tests.support.cluster.pool_world import Answer, World
from tests.support.simulate import build

TRACE = "00-0123456789abcdef0123456789abcdef-0123456789abcdef-01"


@pytest.fixture
def world():
    with World() as world:
        yield world


class Ahead:
    """A clock that is ahead of Kafka's."""

    def __init__(self, clock, seconds):
        self._clock, self._ahead_us = clock, seconds * SECOND

    def now(self):
        return self._clock.now() + self._ahead_us


@pytest.mark.parametrize("sees_instances", [True, False])
def test_hosts_whose_clocks_are_ahead_of_kafkas_take_over_from_each_other(world, sees_instances):
    first, second = world.process(), world.process()
    for process in (first, second):
        process.member._clock = Ahead(world.clock, 600)
    if not sees_instances:  # not yet
        second.member._instances.clear()
    world.assign(first)
    world.flow()
    client = world.call(first, "a")
    world.sleep(3)
    running = world.run("a")

    world.assign(second)
    world.sleep(1)
    assert second.decides
    assert second.member.balancer.ledger.instance_of("a") == running.instance_id
    arrivals = [r for r, _, _ in world.records() if isinstance(r.event, Arrived)]
    assert len(arrivals) <= 1, "the call was not known, and taken for a new one"
    running.end()
    world.flow()
    assert client.status == 200
    assert len(second.member.balancer.ledger) == 0


@pytest.mark.parametrize("tokens", [-1, 1 << 48, 10**30])
def test_tokens_that_no_engine_counts_are_buried(world, tokens):
    process = world.process()
    world.assign(process)
    world.flow()
    world.tell("p-other", Arrived(build.request("a", at=world.clock.now())))
    world.flow()
    world.tell("p-other", Finished("a", 1, tokens))
    world.flow()
    assert len(world.logs[Topic.DEAD_LETTERS]) == 1
    assert process.decides
    world.tell("p-other", Finished("a", 1, (1 << 48) - 1))
    world.flow()
    assert "a" not in process.member.balancer.ledger


def test_an_answer_without_end_becomes_an_error(world):
    process = world.process()
    world.assign(process)
    world.flow()
    world.ask("a")
    world.flow()
    read = []

    def endless():
        while len(read) < 100:
            read.append(b"x" * (1 << 20))
            yield read[-1]

    answer = Answer(kind="text/plain", parts=endless())
    world.run("a").answer(answer)
    world.flow()
    assert world.replies("a") == [UpstreamFailed.status]
    assert len(read) == (ANSWER_BYTES >> 20) + 1
    assert len(process.member.balancer.ledger) == 0


def test_no_timer_is_left_of_a_call_that_had_time(world):
    process = world.process()
    world.assign(process)
    world.flow()
    before = len(timers(world))
    for name in ("a", "b"):
        deadline = world.clock.now() + 3_600 * SECOND
        world.ask(name, **{"kairos-deadline": str(deadline)})
        world.flow()
        world.run(name).end()
        world.flow()
        assert world.replies(name) == [200]
    assert len(timers(world)) <= before


def timers(world):
    far = world.loop.time() + 1_000
    return [t for t in world.loop._scheduled if not t.cancelled() and t.when() > far]


@pytest.mark.parametrize(
    ("said", "passed_on"), [(TRACE, TRACE), ("x\r\nAuthorization: mine", None), (TRACE + "x", None)]
)
def test_only_a_traceparent_reaches_the_engine_as_one(world, said, passed_on):
    process = world.process()
    seen = []
    send = process.engine.client.send

    def listen(answer, upstream):
        seen.append(re.findall(rb"traceparent: (.*)\r", answer.head))
        send(answer, upstream)

    process.engine.client.send = listen
    world.assign(process)
    world.flow()
    world.ask("a", traceparent=said)
    world.flow()
    assert seen == [[] if passed_on is None else [passed_on.encode()]]


def test_an_instance_that_only_other_processes_name_is_said_to_the_client(world):
    decides, performs = world.process(), world.process()
    performs.engine.client.upstreams.clear()
    world.assign(decides)
    world.flow()
    client = world.call(performs, "a")
    world.flow()
    assert client.status == UpstreamFailed.status
    assert "must name the same engines" in str(client.error)
    assert len(decides.member.balancer.ledger) == 0


def test_a_member_that_joins_anew_commits_nothing_for_partitions_that_it_had(world):
    process = world.process()
    theirs = ReceivedMessage(Topic.REQUESTS, 1, 7, 0, "another", b"", {})
    process.group.put(Assigned(Topic.REQUESTS, 1, 0, ""), theirs)
    world.assign(process)
    world.flow()
    commits = []

    async def commit(offsets):
        commits.append(set(offsets))

    process.group.commit = commit
    world.sleep(1.5)
    assert commits[-1] == {(Topic.REQUESTS, 0), (Topic.REQUESTS, 1)}

    async def superseded():
        raise _Superseded

    process.group.batch = superseded
    world.tell("p-other", WorkflowEnded("default", "w"))
    world.sleep(2)
    world.assign(process)
    world.flow()
    assert process.decides
    process.group.commit = commit
    world.sleep(1.5)
    assert commits[-1] == {(Topic.REQUESTS, 0)}


def test_whoever_takes_over_knows_how_long_a_call_has_waited_and_run(world):
    first, second = world.process(), world.process()
    world.assign(first)
    world.flow()
    for name in "abcd":
        world.call(first, name)
    world.sleep(10)
    before = positions(first)
    assert any(dispatched_at is None for *_, dispatched_at in before.values())

    world.assign(second)
    world.sleep(1)
    assert second.decides
    assert positions(second) == before


def positions(process):
    calls = process.member.balancer.estimates.positions._calls
    return {
        name: (call.workflow, call.arrived_at, call.prompt_tokens, call.dispatched_at)
        for name, call in calls.items()
    }
