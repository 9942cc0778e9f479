"""Spoilt records on the topics of a pool end no process and make none deaf.

Calls are performed as if the records were not there.
"""

import asyncio
import random
from collections import Counter

import msgspec
import pytest

from kairos.agent import Application, read_result
from kairos.agent import run as run_agents
from kairos.agents.bus_llm import read_reply
from kairos.cli.bus_check import RecordReader
from kairos.cluster import (
    POOL_HEADER,
    TAKEOVER_HEADER,
    TOLD,
    TYPE_HEADER,
    Envelope,
    MemoryBus,
    ReceivedMessage,
    Told,
    read_orders,
    read_part,
    read_record,
    read_told,
    write_message,
)
from kairos.cluster.orchestrate.follower import Ends
from kairos.cluster.orchestrate.following import Following
from kairos.cluster.pool.messages import CAUSE, EPOCH, PERFORMER
from kairos.core import (
    SECOND,
    SERVICE_CLASSES,
    AgentRank,
    Arrived,
    Bounced,
    Cancelled,
    Entitlements,
    EntitlementsChanged,
    Failed,
    Finished,
    FirstToken,
    InstanceJoined,
    InvalidRequest,
    KairosError,
    Learner,
    Message,
    Orchestrator,
    PlanDeclared,
    PlannedOperator,
    PlannedWork,
    PolicyChosen,
    ProfilesLearnt,
    Progressed,
    Quota,
    Record,
    Started,
    TenantWeight,
    Topic,
    WorkflowEnded,
)
from tests.property.core.test_balancer_machine import remaining_model
from tests.support.cluster.pool_world import POOL as NAME
from tests.support.cluster.pool_world import life
from tests.support.core import learnt
from tests.support.forged import forge
from tests.support.played_pool import PlayedPool
from tests.support.simulate import build

WRONG = (InvalidRequest, ValueError, msgspec.MsgspecError, RecursionError)
LIMIT_S = 60
NEVER = 10**6  # no epoch
PLAN = PlannedWork((PlannedOperator("a", calls=2.0),))
QUOTAS = (Quota("t", calls_at_once=5),)
SHARES = Entitlements({"t": TenantWeight(2.0, {"a": 1.0})}, dict(SERVICE_CLASSES), QUOTAS)
FACTS = (
    Arrived(build.request("g", prefix=(1, 2), prefix_units=200), body=7),
    FirstToken("g"),
    Finished("g", 10, 20, 5, 0, 0),
    Failed("g", "upstream_error", 3, by_instance=True, body=7),
    Cancelled("g"),
    Bounced("g", "upstream_error", body=7),
    Progressed({"g": 7}),
    WorkflowEnded("default", "w"),
    PlanDeclared("default", "app", PLAN),
    EntitlementsChanged(SHARES),
    PolicyChosen("fcfs"),
    InstanceJoined(build.instance("e9")),
    Started(("g",), ("e0",)),
)


class Forgery(PlayedPool):
    """A pool whose messages are spoilt."""

    def genuine(self):
        """Return messages of each topic: what was written, and facts of each kind."""
        found = {
            topic: [*self.world.logs[topic]]
            for topic in (Topic.REQUESTS, Topic.EVENTS, Topic.DISPATCHES)
        }
        epoch = str(max(each.offset for each in found[Topic.EVENTS] if each.value is None))
        headers = {POOL_HEADER: NAME, EPOCH: epoch, CAUSE: "0", PERFORMER: "p1"}
        for fact in FACTS:
            told = msgspec.json.encode(Told("p1", fact))
            record = msgspec.json.encode(Record(self.world.clock.now(), fact))
            found[Topic.REQUESTS].append(
                ReceivedMessage(Topic.REQUESTS, 0, 0, 0, NAME, told, {TYPE_HEADER: TOLD})
            )
            found[Topic.EVENTS].append(ReceivedMessage(Topic.EVENTS, 0, 0, 0, "w", record, headers))
        return found

    def forged(self, seed, count):
        draw = random.Random(seed)
        found = self.genuine()
        return [forge(draw, draw.choice(found[each])) for each in found for _ in range(count)]


@pytest.fixture
def pools():
    """Make pools that have performed calls, and end them."""
    made = []

    def make():
        made.append(Forgery())
        made[-1].perform()
        return made[-1]

    yield make
    for each in made:
        each.world.__exit__()


def _is_void(message):
    """Return whether nobody can make anything of it."""
    try:
        if message.topic == Topic.DISPATCHES:
            return read_orders(message)[0] > NEVER
        if TAKEOVER_HEADER in message.headers:
            return False  # whoever may write can announce itself
        if message.topic == Topic.EVENTS:
            return read_record(message)[0] > NEVER
        if message.headers.get(TYPE_HEADER) == TOLD:
            return isinstance(read_told(message.value or b"").event, InstanceJoined)
    except WRONG:
        return True
    return False


def check_calls_go_on(pools, seed, count):
    """Write what is void in the middle and at the head, and have it read back."""
    played = pools()
    void = [each for each in played.forged(seed, count) if _is_void(each)]
    random.Random(seed).shuffle(void)
    part = len(void) // 3 + 1
    for start in range(0, len(void), part):
        for each in void[start : start + part]:
            played.write(each)
        played.perform()
        played.take_over()
        played.check_alive()
        played.perform()
    log = played.world.logs[Topic.EVENTS]
    log[:] = [each for each in log if each.offset not in played.written]
    lives, states, _ = life(played.world.records())
    assert states == {}
    assert all(each.count("Finished") == 1 for each in lives.values())
    return Counter(each.topic for each in void)


def check_no_process_ends(pools, seed, count):
    """Write all of it: what somebody who may write can say, changes what is decided."""
    played = pools()
    for each in played.forged(seed, count):
        played.write(each)
    played.world.flow()
    played.world.sleep(2)
    if not played.deciding.decides:  # some announced themselves: it announces itself again
        played.world.assign(played.deciding)
        played.world.sleep(7)  # a cause that never comes is awaited for five seconds
    played.check_alive()
    played.take_over()
    played.world.sleep(7)
    played.check_alive()


def check_follower(pools, seed, count):
    """Have the one who learns read it all."""
    played = pools()
    events = [*played.world.logs[Topic.EVENTS]]
    forged = [each for each in played.forged(seed, count) if each.topic == Topic.EVENTS]
    followed, now = Following(ProfilesLearnt(), 0, None, idle_us=60_000_000), 0
    for offset, each in enumerate([*events, *forged]):
        now = played.world.clock.now()
        followed.take(msgspec.structs.replace(each, offset=offset, at=now))
    followed.caught_up()
    assert followed.records >= sum(each.value is not None for each in events)
    assert followed.progress() is not None


@pytest.mark.parametrize("seed", range(2))
def test_calls_are_performed_as_if_it_were_not_there(pools, seed):
    found = check_calls_go_on(pools, seed, 150)
    assert min(found.values()) > 20


@pytest.mark.parametrize("seed", range(2))
def test_no_process_ends(pools, seed):
    check_no_process_ends(pools, seed, 150)


@pytest.mark.parametrize("seed", range(2))
def test_who_learns_goes_on(pools, seed):
    check_follower(pools, seed, 150)


def test_what_is_void_is_named_by_the_check_and_what_is_genuine_is_not(pools):
    played = pools()
    played.take_over()
    played.perform()
    reader = RecordReader()
    for topic in (Topic.REQUESTS, Topic.DISPATCHES, Topic.EVENTS):
        for each in played.world.logs[topic]:
            assert reader.complain(each) is None
    assert not list(reader.complain_of_epochs())
    for each in played.forged(3, 300):
        if _is_void(each):
            assert reader.complain(each) or list(reader.complain_of_epochs())


def spoilt_parts(seed, count):
    """Return parts of what was learnt, spoilt; with the genuine ones."""
    draw = random.Random(seed)
    profile = learnt.profile("x", [SECOND, 2 * SECOND], tenant="t")
    parts = {
        ("profile", "t", "app", "x"): ProfilesLearnt(profiles=(profile,)),
        ("model", "t", "app"): ProfilesLearnt(models=(remaining_model("t", "app", "x", 3),)),
        ("rank", "t", "app", "x"): ProfilesLearnt(ranks=(AgentRank("t", "app", "x", 2.0),)),
        ("kendall_tau",): ProfilesLearnt(kendall_tau=0.5),
    }
    genuine = [
        ReceivedMessage(Topic.PROFILES, 0, 0, 0, msgspec.json.encode(key).decode(), value, {})
        for key, part in parts.items()
        for value in (msgspec.json.encode(part), None)
    ]
    return genuine, [forge(draw, draw.choice(genuine)) for _ in range(count)]


def check_learning(pools, seed, count):
    """Learn all of them that can be read, and decide by it."""
    genuine, spoilt = spoilt_parts(seed, count)
    played, read = pools(), 0
    for each in [*genuine, *spoilt]:
        try:
            part = read_part(each.key, each.value)
        except WRONG:
            continue
        read += 1
        played.deciding.active.feed(part)
        Learner(Orchestrator()).restore(part)
    played.perform()
    played.check_alive()
    assert read > len(genuine)


ENVELOPE = Envelope(
    workflow_id="w", app="app", agent="x", upstream="user", started_at=1, parent="r",
    traceparent=f"00-{'a' * 32}-{'b' * 16}-01",
)  # fmt: skip


async def _publish_spoilt(bus, topic, draw, count):
    genuine = write_message(ENVELOPE, {"text": "do", "n": [1, {"a": "b"}]})
    for _ in range(count):
        spoilt = forge(draw, genuine)
        content = spoilt.value or b""  # as a tombstone is handed on
        if len(content) < 1 << 20:
            await bus.publish(topic, msgspec.structs.replace(spoilt, value=content))


async def _exchange(draw, count):
    """Run an application of one agent, and who tells of ends, among spoilt messages."""
    bus, app, done, told = MemoryBus(), Application("app", entry="x"), [], []

    @app.agent("x")
    async def x(task):
        await task.finish({"text": "done"})

    async def note_result(message):
        if message.key == "genuine":
            done.append(read_result(message).value)

    async def note_end(message):
        event = read_told(message.value).event
        if event.workflow_id == "genuine":
            told.append(event)

    inbox = app.inbox("x")
    for topic in (inbox, Topic.RESULTS):
        await _publish_spoilt(bus, topic, draw, count)
    asked = msgspec.structs.replace(ENVELOPE, workflow_id="genuine")
    await bus.publish(inbox, write_message(asked, {"text": "do"}))
    async with asyncio.timeout(LIMIT_S), asyncio.TaskGroup() as tasks:
        running = [
            tasks.create_task(each)
            for each in (
                run_agents([app], bus, None),
                Ends(bus, (NAME,)).run(),
                bus.consume(Topic.RESULTS, "test", note_result),
                bus.consume(Topic.REQUESTS, "test", note_end),
            )
        ]
        while not (done and told):
            assert not any(each.done() for each in running)
            await asyncio.sleep(0.001)
        for each in running:
            each.cancel()
    assert done == [{"text": "done"}]
    assert len(told) == 1


def check_messages(pools, seed, count):
    asyncio.run(_exchange(random.Random(seed), count))


def check_replies(pools, seed, count):
    """Read spoilt replies: each is an answer, or fails its call alone."""
    draw, read = random.Random(seed), 0
    value = b'{"status":200,"body":{"choices":[{"message":{"content":"x"}}]},"retry_after":"1"}'
    reply = Message(key="r", value=value, headers={"kairos-request-id": "r"})
    for _ in range(count):
        try:
            read_reply(forge(draw, reply).value or b"").answer()
        except KairosError:
            continue
        read += 1
    assert read


@pytest.mark.parametrize("check", [check_messages, check_replies])
def test_what_agents_read_is_read_among_spoilt_messages(pools, check):
    check(pools, 0, 150)


@pytest.mark.parametrize("seed", range(2))
def test_what_is_learnt_from_spoilt_profiles_can_be_decided_by(pools, seed):
    check_learning(pools, seed, 300)


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "check",
    [
        check_calls_go_on,
        check_no_process_ends,
        check_follower,
        check_learning,
        check_messages,
        check_replies,
    ],
)
def test_ten_thousand_of_each_topic(pools, check):
    for seed in range(100, 120):
        check(pools, seed, 500)
