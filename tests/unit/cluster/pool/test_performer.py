"""One process of a pool performs calls, and another decides: what it tells, and whom it obeys."""

import msgspec
import pytest

from kairos.cluster import POOL_HEADER as IN_POOL
from kairos.cluster import TAKEOVER_HEADER, ReceivedMessage
from kairos.cluster.decisions.messages import Declined
from kairos.cluster.kafka.tail import NotKept
from kairos.cluster.pool import performer as performer_module
from kairos.cluster.pool.messages import EPOCH, PERFORMER, TOLD_BYTES, TOLD_CALLS, Orders
from kairos.core import (
    MOST_OPERATORS,
    Dispatch,
    Finished,
    FirstToken,
    InstanceJoined,
    InvalidRequest,
    PlanDeclared,
    PlannedOperator,
    PlannedWork,
    Progressed,
    QueueFull,
    Refuse,
    Topic,
    Unavailable,
    WorkflowEnded,
)
from kairos.settings import EngineSettings
from tests.support.cluster.pool_world import POOL, World
from tests.support.observe.figures import left_out

DISPATCH = b'{"commands":[{"type":"Dispatch","request_id":"c","instance_id":"e1"}],"turns":%b}'


@pytest.fixture
def world():
    with World(gives_up_s=10) as world:
        yield world
        assert world.problems == []


@pytest.fixture
def process(world):
    """Decides nothing itself. Others announced themselves before."""
    for _ in range(10):
        world.append(Topic.EVENTS, POOL, None, {TAKEOVER_HEADER: "p9", IN_POOL: POOL})
    process = world.process()
    world.flow()
    return process


def order(process, *commands, turn=0, epoch=5, performer="p0", key=POOL, value=None):
    orders = Orders(commands, (turn,) * len(commands))
    value = msgspec.json.encode(orders) if value is None else value
    headers = {EPOCH: str(epoch), PERFORMER: performer}
    headers = {name: text for name, text in headers.items() if text != "None"}
    process.performer._read(ReceivedMessage(Topic.DISPATCHES, 0, 0, 0, key, value, headers))
    process.world.settle()


def told(world, kind="told"):
    return [
        msgspec.json.decode(m.value)["event"]
        for m in world.logs[Topic.REQUESTS]
        if m.headers["kairos-type"] == kind
    ]


def test_a_refused_call_fails_with_what_was_said(world, process):
    clients = [world.call(process, name) for name in ("a", "b", "c")]
    world.settle()
    declined = Declined.of("c", QueueFull(3))
    order(process, Refuse("a", None), Refuse("b", None, "waited_too_long"), declined)
    assert [client.error.code for client in clients] == [
        "no_instance",
        "waited_too_long",
        "queue_full",
    ]
    assert clients[2].error.retry_after_s == 1


def test_an_order_that_is_said_again_starts_nothing_again(world, process):
    world.call(process, "c")
    world.settle()
    for instance in ("e0", "e0", "e1"):
        order(process, Dispatch("c", instance))
    order(process, Refuse("c", None))
    assert [where for _, _, where in world.starts] == ["e0"]


@pytest.mark.parametrize("wrong", [{"performer": "p1"}, {"performer": "None"}, {"key": "other"}])
def test_orders_to_others_are_theirs(world, process, wrong):
    world.call(process, "c")
    world.settle()
    order(process, Dispatch("c", "e0"), **wrong)
    assert world.starts == []


def test_another_pools_balancer_has_epochs_of_its_own(world, process):
    world.call(process, "c")
    world.settle()
    order(process, epoch=99, key="other")
    order(process, Dispatch("c", "e1"), epoch=7)
    assert len(world.starts) == 1


@pytest.mark.parametrize(
    "wrong",
    [
        {"value": b"{"},
        {"value": b"\xff"},
        {"value": b"null"},
        {"value": b'{"commands":[],"turns":[0]}'},
        {"value": DISPATCH % b"[]"},
        {"value": DISPATCH % b"[-1]"},
        {"value": DISPATCH % b"[0,0]"},
        {"value": b"[" * 50_000},
        {"epoch": "x"},
        {"epoch": "None"},
        {"epoch": "-1"},
        {"epoch": "1_0"},
        {"epoch": 10},  # where no announcement is
        {"epoch": 10**17},
        {"epoch": 10**40},
    ],
)
def test_an_order_that_makes_no_sense_is_left_out(world, process, wrong):
    before = sum(left_out().values())
    world.call(process, "c")
    world.settle()
    order(process, Dispatch("c", "e1"), **wrong)
    order(process, Dispatch("c", "e0"), epoch=0)
    assert [where for _, _, where in world.starts] == ["e0"]
    assert sum(left_out().values()) == before + 1


def test_orders_wait_in_their_order_for_their_epoch_to_be_found(world, process, monkeypatch):
    asked, answer = [], world.loop.create_future()

    async def read_at(_, topic, offset):
        asked.append((topic, offset))
        return await answer

    monkeypatch.setattr(performer_module, "read_at", read_at)
    for name in ("c", "d"):
        world.call(process, name)
    world.settle()
    order(process, Dispatch("c", "e0"), epoch=7)
    order(process, Dispatch("d", "e1"), epoch=7)
    assert (world.starts, asked) == ([], [(Topic.EVENTS, 7)])
    answer.set_result(world.logs[Topic.EVENTS][7])
    world.settle()
    assert [where for _, _, where in world.starts] == ["e0", "e1"]
    order(process, epoch=7)
    assert len(asked) == 1


def test_where_the_topic_has_not_kept_announcements_the_number_has_to_do(
    world, process, monkeypatch
):
    async def read_at(*_):
        raise NotKept

    monkeypatch.setattr(performer_module, "read_at", read_at)
    for name in ("c", "d"):
        world.call(process, name)
    world.settle()
    order(process, epoch=10**6)
    order(process, Dispatch("c", "e0"), epoch=7)
    order(process, Dispatch("d", "e1"), epoch=7)
    assert [where for _, _, where in world.starts] == ["e0", "e1"]


def test_while_the_bus_does_not_say_whether_an_epoch_is_one_it_is_asked_again(
    world, process, monkeypatch
):
    tries = []

    async def read_at(*_):
        tries.append(None)
        if len(tries) < 3:
            raise Unavailable("away")
        return world.logs[Topic.EVENTS][7]

    monkeypatch.setattr(performer_module, "read_at", read_at)
    world.call(process, "c")
    world.settle()
    order(process, Dispatch("c", "e0"), epoch=7)
    world.sleep(3)
    assert [where for _, _, where in world.starts] == ["e0"]


def test_it_gives_up_when_no_balancer_answers(world, process):
    clients = [world.call(process, "a")]
    world.sleep(20)
    clients.append(world.call(process, "b"))
    world.sleep(19)
    assert not clients[0].has_ended
    world.sleep(3)
    assert clients[0].error.code == "waited_too_long"
    assert not clients[1].has_ended
    world.sleep(20)
    assert clients[1].error.code == "waited_too_long"
    assert [event["type"] for event in told(world)] == ["Arrived", "Arrived", "Failed", "Failed"]


def test_it_gives_up_while_the_bus_is_away_as_well(world, process):
    process.is_cut_off = True
    client = world.call(process, "a")
    world.sleep(43)
    assert client.error.code == "waited_too_long"


def test_a_call_whose_arrival_the_cluster_refuses_fails_at_once(world, process):
    process.outbox.refused.add(Topic.REQUESTS)
    client = world.call(process, "a")
    world.flow(3)
    assert (client.error.status, client.error.code) == (503, "unavailable")
    process.outbox.refused.clear()


@pytest.mark.parametrize("event", [FirstToken("c"), Finished("c"), WorkflowEnded("default", "w")])
def test_how_a_call_ended_is_told_when_the_bus_takes_messages_again(world, process, event):
    process.outbox.is_full = True
    process.performer.feed(event)
    world.sleep(2)
    assert told(world) == []
    process.outbox.is_full = False
    world.sleep(2)
    assert [each["type"] for each in told(world)] == [type(event).__name__]


def test_how_a_call_ended_is_told_until_the_cluster_has_it(world, process):
    process.outbox.refused.add(Topic.REQUESTS)
    process.performer.feed(Finished("a"))
    process.performer.feed(Finished("b"))
    world.sleep(3)
    assert told(world) == []
    process.outbox.refused.clear()
    world.sleep(2)
    assert sorted(each["request_id"] for each in told(world)) == ["a", "b"]


def test_ends_of_workflows_are_kept_within_bounds_and_facts_of_calls_all(
    world, process, monkeypatch
):
    monkeypatch.setattr(performer_module, "_MOST_ENDS", 3)
    process.outbox.is_full = True
    for number in range(10):
        process.performer.feed(WorkflowEnded("default", f"w{number}"))
        process.performer.feed(Finished(f"c{number}"))
    with pytest.raises(Unavailable):  # whoever cancels one is told that it was not done
        process.performer.feed(WorkflowEnded("default", "unwanted", cancelled=True))
    process.outbox.is_full = False
    world.sleep(2)
    types = [each["type"] for each in told(world)]
    assert (types.count("WorkflowEnded"), types.count("Finished")) == (3, 10)
    process.performer.feed(WorkflowEnded("default", "unwanted", cancelled=True))  # room again
    world.sleep(2)
    assert told(world)[-1]["workflow_id"] == "unwanted"


def test_ends_that_the_cluster_refuses_are_kept_within_bounds(world, process, monkeypatch):
    monkeypatch.setattr(performer_module, "_MOST_ENDS", 3)
    process.outbox.refused.add(Topic.REQUESTS)
    for number in range(10):
        process.performer.feed(WorkflowEnded("default", f"w{number}"))
    world.sleep(2)
    process.outbox.refused.clear()
    world.sleep(2)
    assert len(told(world)) == 3


def test_how_far_calls_are_is_told_in_messages_of_a_bounded_size(world, process):
    counts = {f"{n:0>128}": (1 << 48) - 1 - n for n in range(2 * TOLD_CALLS + 1)}
    process.performer.feed(Progressed(counts))
    world.flow()
    messages = [m for m in world.logs[Topic.REQUESTS] if m.headers["kairos-type"] == "told"]
    assert [len(each["completion_tokens"]) for each in told(world)] == [TOLD_CALLS, TOLD_CALLS, 1]
    assert {k: n for each in told(world) for k, n in each["completion_tokens"].items()} == counts
    assert max(len(message.value) for message in messages) <= TOLD_BYTES


def test_how_far_calls_are_is_not_told_again(world, process, caplog):
    process.outbox.is_full = True
    process.performer.feed(Progressed({"a": 1}))
    process.outbox.is_full = False
    process.outbox.refused.add(Topic.REQUESTS)
    process.performer.feed(Progressed({"a": 2}))
    world.sleep(2)
    assert "kairos.requests is not wanted" in caplog.text
    process.outbox.refused.clear()
    process.performer.feed(Progressed({"a": 3}))
    world.sleep(3)
    assert [each["completion_tokens"] for each in told(world)] == [{"a": 3}]


PLAN = PlannedWork((PlannedOperator("a"),))
WIDEST = PlannedWork(
    tuple(PlannedOperator(f"a{n:0>120}", tuple(range(n))) for n in range(MOST_OPERATORS))
)


def test_a_declared_plan_is_told_once_and_never_kept_for_a_bus_that_takes_nothing(world, process):
    process.outbox.is_full = True
    for number in range(3):
        with pytest.raises(Unavailable):
            process.performer.feed(PlanDeclared("default", f"app{number}", PLAN))
    process.outbox.is_full = False
    process.performer.feed(PlanDeclared("default", "again", PLAN))
    world.sleep(2)
    assert [each["app"] for each in told(world)] == ["again"]


def test_a_plan_that_no_balancer_would_take_is_not_told(world, process):
    with pytest.raises(InvalidRequest):
        process.performer.feed(PlanDeclared("default", "app", WIDEST))
    world.flow()
    assert told(world) == []


def test_a_call_with_an_absurdly_long_name_is_the_clients_mistake(world, process):
    client = world.call(process, "a", model="m" * 70_000)
    world.settle()
    assert isinstance(client.error, InvalidRequest)
    assert client.status == 400


class OverTwo:
    """A gateway over two pools: one that a process of the world decides for, and `far`."""

    def __init__(self, world):
        self.world, self.decider = world, world.process()
        world.assign(self.decider)
        self.far_epoch = world.append(
            Topic.EVENTS, "far", None, {TAKEOVER_HEADER: "p9", IN_POOL: "far"}
        )
        self.gateway = world.process((POOL, "far"))
        engines = [
            EngineSettings(url="http://e0", pool=POOL),
            EngineSettings(url="http://e1", pool="far"),
        ]
        self.gateway.cells.follow(engines, ())
        for joined in world.fleet.values():
            self.gateway.cells.hear(InstanceJoined(joined))
        world.flow()

    def call_in(self, pool, count=1):
        """Make calls of workflows that are in the pool; return their names."""
        names = []
        for number in range(200):
            name = f"{pool}-{number}"
            if self.gateway.cells.pools_of("default", f"w-{name}") == [pool]:
                self.world.call(self.gateway, name)
                names.append(name)
            if len(names) == count:
                return names
        raise AssertionError

    def order(self, *commands, key="far", turn=0):
        self.world.flow()
        order(
            self.gateway,
            *commands,
            turn=turn,
            epoch=self.far_epoch,
            performer=self.gateway.performer.id,
            key=key,
        )
        self.world.flow()

    def told_of(self, name):
        """Return the pools that had facts of the call or workflow, in order of the facts."""
        return [
            (m.key, msgspec.json.decode(m.value)["event"]["type"])
            for m in self.world.logs[Topic.REQUESTS]
            if m.headers["kairos-type"] == "told" and name.encode() in m.value
        ]


@pytest.fixture
def over_two(world):
    return OverTwo(world)


def test_each_pool_decides_on_its_own_calls(world, over_two):
    [near], [far] = over_two.call_in(POOL), over_two.call_in("far")
    world.flow()
    over_two.order(Dispatch(far, "e1"))
    assert sorted((name, where) for _, name, where in world.starts) == sorted(
        [(far, "e1"), (near, world.run(near).instance_id)]
    )
    for name in (near, far):
        world.run(name).end()
    world.flow()
    assert {pool for pool, _ in over_two.told_of(near)} == {POOL}
    assert {pool for pool, _ in over_two.told_of(far)} == {"far"}
    assert over_two.told_of(far)[-1] == ("far", "Finished")
    assert [client.status for client in over_two.gateway.clients] == [200, 200]


def test_a_pool_whose_balancer_says_nothing_gets_no_new_workflows(world, over_two):
    over_two.order()
    assert over_two.call_in("far")
    world.sleep(12)
    assert over_two.gateway.cells.is_away("far")
    assert not over_two.gateway.cells.is_away(POOL), "its balancer shows that it is alive"
    world.call(over_two.gateway, "late")
    world.flow()
    assert over_two.told_of("late")[0] == (POOL, "Arrived")
    assert world.run("late").instance_id in ("e0", "e1")
    over_two.order()
    assert not over_two.gateway.cells.is_away("far")


def test_progress_is_told_to_the_pool_of_each_call(world, over_two):
    [near], [far] = over_two.call_in(POOL), over_two.call_in("far")
    world.flow()
    over_two.order(Dispatch(far, "e1"))
    over_two.gateway.performer.feed(Progressed({near: 3, far: 5}))
    world.flow()
    progress = {
        m.key: msgspec.json.decode(m.value)["event"]["completion_tokens"]
        for m in world.logs[Topic.REQUESTS]
        if b"Progressed" in m.value
    }
    assert progress == {POOL: {near: 3}, "far": {far: 5}}


def test_a_refused_call_is_forgotten_once_its_pool_knows(world, over_two):
    [far] = over_two.call_in("far")
    world.flow()
    over_two.order(Refuse(far, None))
    [client] = over_two.gateway.clients
    assert client.error.code == "no_instance"
    assert over_two.told_of(far) == [("far", "Arrived"), ("far", "Failed")]
    assert over_two.gateway.performer._pool_of == {}


def test_an_end_reaches_the_pool_of_the_workflow(world, over_two):
    [far] = over_two.call_in("far")
    over_two.gateway.performer.feed(WorkflowEnded("default", f"w-{far}"))
    world.flow()
    assert ("far", "WorkflowEnded") in over_two.told_of(f"w-{far}")
