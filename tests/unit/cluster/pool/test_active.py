"""Who decides for a pool, what it says and in which order, and how another takes over."""

import msgspec
import pytest

from kairos.cluster import (
    POOL_HEADER,
    TAKEOVER_HEADER,
    TYPE_HEADER,
    ClusterControl,
    ReceivedMessage,
)
from kairos.cluster.kafka.items import Assigned, CaughtUp, Revoked
from kairos.cluster.pool import active as active_module
from kairos.cluster.pool import decision_publisher as publisher_module
from kairos.cluster.pool.messages import CAUSE, EPOCH, PERFORMER, TURN
from kairos.core import (
    PLACEMENTS,
    POLICIES,
    SECOND,
    Arrived,
    Balancer,
    Cancelled,
    Failed,
    Finished,
    InstanceJoined,
    InstanceLeft,
    InstanceStatus,
    PlanDeclared,
    PlannedOperator,
    PlannedWork,
    PrefillFailed,
    ProfilesLearnt,
    Progressed,
    Tick,
    Topic,
    WorkflowEnded,
)
from tests.support.cluster.pool_world import POOL as NAME
from tests.support.cluster.pool_world import REPLY_TO, World, life
from tests.support.simulate import build


@pytest.fixture
def world():
    with World() as world:
        yield world
        assert world.problems == []


@pytest.fixture
def process(world):
    """The one that decides."""
    process = world.process()
    world.assign(process)
    world.flow()
    return process


@pytest.fixture
def gateway(world, process):
    """Another."""
    gateway = world.process()
    world.flow()
    return gateway


def orders(world, performer):
    return [
        (command["type"], command["request_id"])
        for m in world.logs[Topic.DISPATCHES]
        if m.headers[PERFORMER] == performer
        for command in msgspec.json.decode(m.value)["commands"]
    ]


def is_done(world, process):
    world.sleep(2)
    assert process.active.open_calls.all() == []
    assert len(process.member.balancer.ledger) == process.member.balancer.waiting == 0
    assert list(process.active._publisher.offsets._undone) == []
    return True


def undone(process):
    return list(process.active._publisher.offsets._undone)


# What is said, and in which order


def test_nobody_is_told_before_the_decision_is_safe(world, process, gateway):
    world.call(gateway, "c")
    world.settle()
    gateway.outbox.deliver(Topic.REQUESTS)
    world.settle()
    assert process.outbox.unsent[Topic.EVENTS]
    assert not process.outbox.unsent[Topic.DISPATCHES]
    process.outbox.deliver(Topic.EVENTS)
    world.settle()
    assert not process.outbox.unsent[Topic.DISPATCHES], "in the log, but that is not known here yet"
    process.outbox.acknowledge(Topic.EVENTS)
    world.settle()
    assert process.outbox.unsent[Topic.DISPATCHES]


def test_this_process_is_not_told_before_the_decision_is_safe_either(world, process):
    world.call(process, "c")
    world.settle()
    process.outbox.deliver(Topic.REQUESTS)
    world.settle()
    process.outbox.deliver(Topic.EVENTS)
    world.settle()
    assert world.running == []
    process.outbox.acknowledge(Topic.EVENTS)
    world.settle()
    assert [running.name for running in world.running] == ["c"]


def test_a_message_is_done_when_the_end_of_its_call_is_safe(world, process, gateway):
    world.call(gateway, "c")
    world.flow()
    [arrival] = undone(process)
    world.run("c").end()
    world.settle()
    gateway.outbox.deliver(Topic.REQUESTS)
    world.settle()
    [first, end] = undone(process)
    assert first == arrival
    process.outbox.deliver(Topic.EVENTS)
    world.settle()
    assert undone(process) == [arrival, end]
    process.outbox.acknowledge(Topic.EVENTS)
    world.settle()
    assert undone(process) == []


def test_a_record_says_who_decided_who_performs_and_what_told(world, process, gateway):
    world.call(gateway, "c", workflow_id="w")
    world.flow()
    world.run("c").end()
    world.flow()
    arrived, finished = world.logs[Topic.EVENTS][-2:]
    epoch = str(next(m.offset for m in world.logs[Topic.EVENTS] if TAKEOVER_HEADER in m.headers))
    told = [m.offset for m in world.logs[Topic.REQUESTS] if m.headers[TYPE_HEADER] == "told"]
    assert (arrived.key, finished.key) == ("w", "w")
    said = {PERFORMER: "p1", CAUSE: str(told[0]), TURN: "1"}
    assert arrived.headers == {POOL_HEADER: NAME, EPOCH: epoch, **said}
    assert finished.headers == {POOL_HEADER: NAME, EPOCH: epoch, CAUSE: str(told[1])}


def test_what_is_learnt_and_an_idle_tick_are_no_news(world, process):
    before = len(world.logs[Topic.EVENTS])
    process.active.feed(ProfilesLearnt())
    process.active.feed(Tick())
    world.flow()
    assert len(world.logs[Topic.EVENTS]) == before


def of_kind(process, kind):
    return [record.event for record in process.seen if isinstance(record.event, kind)]


def test_how_an_instance_does_is_decided_on_and_no_news(world, process):
    before = len(world.logs[Topic.EVENTS])
    status = InstanceStatus("e0", kv_used=0.5, running=1)
    ClusterControl(process.engine, process.performer, process.member).feed(status)
    world.flow()
    assert of_kind(process, InstanceStatus) == [status]
    assert len(world.logs[Topic.EVENTS]) == before


def test_only_who_decides_hears_of_how_instances_do(world, process, gateway):
    gateway.member.feed(InstanceStatus("e0", kv_used=0.5))
    world.assign(gateway)
    world.flow()
    assert gateway.decides
    assert of_kind(gateway, InstanceStatus) == of_kind(process, InstanceStatus) == []
    assert [*gateway.member.balancer.ledger.instances] == ["e0", "e1"]


@pytest.mark.interpreted
def test_what_is_decided_on_how_an_instance_does_is_recorded_and_outlives_a_takeover(world):
    replayed = []

    class Recalling(Balancer):
        def replay(self, record):
            replayed.append(type(record.event))
            super().replay(record)

    world.new_balancer = lambda: Recalling(POLICIES["fcfs"], PLACEMENTS["kairos"])
    process, gateway = world.process(), world.process()
    world.assign(process)
    world.flow()
    process.member.feed(InstanceLeft("e1"))
    clients = [world.call(gateway, "a")]
    world.flow()
    process.member.feed(InstanceStatus("e0", kv_used=1.0, running=1, waiting=1, waiting_for_room=1))
    clients.append(world.call(gateway, "b"))
    world.flow()
    assert [running.name for running in world.running] == ["a"]
    process.member.feed(InstanceStatus("e0", kv_used=0.1, running=1, waiting=0, waiting_for_room=0))
    world.flow()
    assert [running.name for running in world.running] == ["a", "b"]

    said = [record for record, _, _ in world.records() if record.commands]
    assert [type(record.event) for record in said] == [Arrived, InstanceStatus]
    world.kill(process)
    gateway.member.feed(InstanceLeft("e0"))  # which it does not see
    world.assign(gateway)
    world.flow()
    assert gateway.member.balancer.ledger.instance_of("b") == "e0"
    assert [*gateway.member.balancer.ledger.instances] == ["e1"]
    assert Arrived in replayed
    assert InstanceStatus not in replayed  # how the instance did then is not how it does now
    for name in "ab":
        world.run(name).end()
    world.flow()
    assert [client.status for client in clients] == [200, 200]
    assert is_done(world, gateway)


def test_how_far_calls_are_is_decided_on_and_no_news(world, process, gateway):
    world.call(gateway, "c")
    world.flow()
    [arrival], before = undone(process), len(world.logs[Topic.EVENTS])
    gateway.performer.feed(Progressed({"c": 5}))
    world.flow()
    assert of_kind(process, Progressed) == [Progressed({"c": 5})]
    assert len(world.logs[Topic.EVENTS]) == before
    assert undone(process) == [arrival]


def test_how_far_a_call_is_tells_only_who_performs_it(world, process, gateway):
    world.call(process, "ours")
    for name in ("theirs", "more"):
        world.call(gateway, name)
    world.flow()  # e0 takes two, e1 one
    world.call(gateway, "waits")
    world.flow()
    counts = {"ours": 1, "theirs": 2, "waits": 3, "never": 4}
    gateway.performer.feed(Progressed(counts))
    world.flow()
    assert of_kind(process, Progressed) == [Progressed({"theirs": 2})]


def test_of_how_far_calls_of_others_are_nothing_is_made(world, process, gateway):
    world.call(process, "c")
    world.flow()
    [arrival] = undone(process)
    gateway.performer.feed(Progressed({"c": 5, "gone": 6}))
    world.flow()
    assert of_kind(process, Progressed) == []
    assert undone(process) == [arrival]
    assert world.logs[Topic.DEAD_LETTERS] == []


@pytest.mark.parametrize("tokens", [-1, 1 << 48])
def test_how_far_no_call_can_be_is_buried(world, process, gateway, tokens):
    world.call(gateway, "c")
    world.flow()
    gateway.performer.feed(Progressed({"c": tokens}))
    world.flow()
    assert of_kind(process, Progressed) == []
    assert len(world.logs[Topic.DEAD_LETTERS]) == 1


def test_who_says_how_far_its_calls_are_is_there(world, process, gateway):
    world.call(gateway, "c")
    world.flow()
    gateway.performing.cancel()  # no beats
    for n in range(20):
        world.sleep(1)
        gateway.performer.feed(Progressed({"c": n}))
    world.flow()
    assert process.member.balancer.ledger.instance_of("c")
    world.sleep(10)
    assert process.member.balancer.ledger.instance_of("c") is None


def test_how_far_calls_are_may_be_told_to_a_successor_again(world, process, gateway):
    world.call(gateway, "c")
    world.flow()
    gateway.performer.feed(Progressed({"c": 5}))
    world.flow()
    world.kill(process)
    world.assign(gateway)
    world.flow()
    assert of_kind(gateway, Progressed) == [Progressed({"c": 5})]  # read again: not committed
    gateway.performer.feed(Progressed({"c": 6}))
    world.flow()
    assert of_kind(gateway, Progressed)[1:] == [Progressed({"c": 6})]
    world.run("c").end()
    world.flow()
    assert is_done(world, gateway)


def test_a_workflows_end_is_recorded_and_done(world, process):
    world.tell("orchestrator", WorkflowEnded("default", "w"))
    world.flow()
    last = world.logs[Topic.EVENTS][-1]
    assert last.key == "w"
    assert undone(process) == []


def test_who_says_that_a_workflow_has_ended_is_not_missed_later(world, process, caplog):
    world.tell("orchestrator", WorkflowEnded("default", "w"))
    world.flow()
    world.sleep(8)
    assert "has sent nothing" not in caplog.text


def test_a_plan_that_a_performer_declares_is_recorded_and_done(world, process):
    plan = PlanDeclared("default", "app", PlannedWork((PlannedOperator("a"),)))
    world.tell("p-other", plan)
    world.flow()
    assert plan in of_kind(process, PlanDeclared)
    assert undone(process) == []


def test_many_commands_are_said_in_several_records(world, monkeypatch):
    monkeypatch.setattr(publisher_module, "MOST_COMMANDS", 2)
    process = world.process()
    world.assign(process)
    gateway = world.process()
    world.flow()
    for name in ("e0", "e1"):
        process.member.feed(InstanceLeft(name))
    process.member.feed(InstanceJoined(build.instance("e0", seqs=1)))
    clients = [world.call(gateway, f"c{n}") for n in range(7)]
    world.flow()
    process.member.feed(InstanceLeft("e0"))
    world.flow()
    last = [msgspec.json.decode(m.value) for m in world.logs[Topic.EVENTS][-3:]]
    assert [record["event"]["type"] for record in last] == ["InstanceLeft", "Tick", "Tick"]
    assert [len(record["commands"]) for record in last] == [2, 2, 2]
    assert sum(client.has_ended for client in clients) == 6
    world.run("c0").end()
    world.flow()
    assert is_done(world, process)
    process.member.feed(InstanceJoined(world.fleet["e0"]))
    world.flow()
    world.kill(process)
    world.assign(gateway)
    world.flow()
    assert is_done(world, gateway)


def test_a_thousand_refusals_at_once_fit_the_bus():
    with World(max_waiting=9_000) as world:
        process = world.process()
        world.assign(process)
        world.flow()
        for n in range(9_000):
            arrived = Arrived(build.request(f"{n:0>100}", at=world.clock.now()))
            world.append(
                Topic.REQUESTS,
                NAME,
                msgspec.json.encode({"performer": "gone", "event": arrived}),
                {TYPE_HEADER: "told"},
            )
        world.flow()
        for name in ("e0", "e1"):
            process.member.feed(InstanceLeft(name))
        world.flow()
        assert process.member.balancer.waiting == 0
        assert not process.active.is_broken
        assert world.problems == []


@pytest.mark.parametrize("how", ["full", "refused"])
def test_what_cannot_be_recorded_is_decided_again_by_whoever_is_next(world, process, gateway, how):
    client = world.call(gateway, "c")
    world.settle()
    gateway.outbox.deliver(Topic.REQUESTS)
    if how == "full":
        process.outbox.is_full = True
    else:
        process.outbox.refused.add(Topic.EVENTS)
    world.settle()
    world.flow()
    assert world.running == []
    assert undone(process) != []
    process.outbox.is_full = False
    process.outbox.refused.clear()
    world.sleep(1)
    assert process.active is None
    assert world.holder is None
    world.sleep(1)
    world.assign(process)
    world.flow()
    assert world.run("c").instance_id
    world.run("c").end()
    world.flow()
    assert client.status == 200
    assert is_done(world, process)
    assert life(world.records())[0]["c"] == ["Arrived", "Dispatch", "Finished"]


# What comes


def test_a_request_that_is_refused_is_declined_and_done(world, process, gateway):
    client = world.call(gateway, "c", model="unknown")
    world.flow()
    assert client.status == 404
    assert orders(world, "p1") == [("Declined", "c")]
    assert is_done(world, process)


@pytest.mark.parametrize(
    ("tenant", "code"), [("acme", "request_in_flight"), ("other", "request_id_taken")]
)
def test_a_name_that_is_in_flight_elsewhere_is_declined(world, process, gateway, tenant, code):
    world.call(process, "c", tenant="acme")
    world.flow()
    twin = world.call(gateway, "c", tenant=tenant)
    world.flow()
    assert twin.error.code == code
    world.run("c").end()
    world.flow()
    assert process.clients[0].status == 200
    assert is_done(world, process)


def test_a_full_queue_declines(world, process, gateway):
    clients = [world.call(gateway, f"c{n}") for n in range(10)]
    world.flow()
    assert [client.status for client in clients] == [None] * 9 + [429]


def test_only_who_performs_a_call_can_end_it(world, process, gateway):
    world.call(gateway, "c")
    world.flow()
    for event in (Finished("c"), Failed("c", "x"), Cancelled("c")):
        world.tell("p0", event)
    world.flow()
    assert "c" in process.active.open_calls
    world.tell("p1", Failed("c", "x"))
    world.flow()
    assert is_done(world, process)


def test_only_who_performs_a_call_can_say_that_its_prompt_failed_elsewhere(world, process, gateway):
    world.call(gateway, "c")
    world.flow()
    world.tell("p0", PrefillFailed("c", 7))
    world.tell("p1", PrefillFailed("c", 8))
    world.flow()
    told = [record.event for record, _, _ in world.records()]
    assert [each.body for each in told if isinstance(each, PrefillFailed)] == [8]
    world.run("c").end()
    world.flow()
    assert is_done(world, process)


def test_news_of_a_call_that_is_not_open_are_done_with(world, process):
    for event in (Finished("x"), Failed("x", "x"), Cancelled("x")):
        world.tell("p1", event)
    world.flow()
    assert is_done(world, process)


def test_messages_of_other_pools_are_done_with(world, process):
    world.append(Topic.REQUESTS, "other", b"{", {TYPE_HEADER: "told"})
    world.flow()
    assert is_done(world, process)
    assert world.logs[Topic.DEAD_LETTERS] == []


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("told", None),
        ("told", b"{"),
        ("told", b"\xff"),
        ("told", b"[" * 100_000),
        ("told", b'{"performer":"p","event":{"type":"Tick"}}'),
        ("told", b'{"performer":"p","event":{"type":"ProfilesLearnt"}}'),
        ("told", b'{"performer":"p","event":{"type":"InstanceLeft","instance_id":"e0"}}'),
        ("told", b'{"performer":"p","event":{"type":"Failed","request_id":"c","reason":"'
         + b"x" * 70_000 + b'"}}'),
        ("alive", None),
        ("alive", b"{}"),
        ("alive", b'{"performer":"' + b"p" * 300 + b'"}'),
        ("call", None),
        ("other", b"{}"),
        (None, b"{}"),
    ],
)  # fmt: skip
def test_what_makes_no_sense_becomes_a_dead_letter(world, process, kind, value):
    headers = {TYPE_HEADER: kind} if kind else {}
    world.append(Topic.REQUESTS, NAME, value, headers)
    world.settle()
    [offset] = undone(process)
    process.outbox.deliver(Topic.DEAD_LETTERS)
    world.settle()
    assert undone(process) == [offset]
    process.outbox.acknowledge(Topic.DEAD_LETTERS)
    world.settle()
    [letter] = world.logs[Topic.DEAD_LETTERS]
    assert (letter.key, letter.value) == (NAME, value)
    assert {name: letter.headers[name] for name in headers} == headers
    assert is_done(world, process)


@pytest.mark.parametrize(
    "absurd", [{"prompt": 10**400}, {"prompt": -1}, {"at": -(10**30)}, {"completion": 0}]
)
def test_a_request_with_absurd_numbers_harms_nobody(world, process, gateway, absurd):
    world.tell("p1", Arrived(build.request("c", **absurd)))
    client = world.call(gateway, "d")
    world.flow()
    world.run("d").end()
    world.flow()
    assert client.status == 200
    assert is_done(world, process)


def test_a_request_from_the_future_begins_now(world, process, gateway):
    at = world.clock.now() + 100 * SECOND
    world.tell("p1", Arrived(build.request("c", at=at)))
    world.flow()
    request = process.active.open_calls.get("c").request
    assert request.arrived_at == request.workflow_started_at <= world.clock.now()


# Time


def test_what_waits_too_long_is_given_up(world, process, gateway):
    clients = [world.call(gateway, f"c{n}") for n in range(5)]
    world.flow()
    world.sleep(29)
    assert not any(client.has_ended for client in clients)
    world.sleep(3)
    assert [client.has_ended for client in clients] == [False] * 3 + [True] * 2
    assert clients[4].error.code == "waited_too_long"
    assert len(undone(process)) == 3


def test_calls_of_a_process_that_died_make_room(world, process, gateway, caplog):
    for n in range(3):
        world.call(gateway, f"c{n}")
    world.flow()
    client = world.call(process, "d")
    world.flow()
    world.kill(gateway)
    world.sleep(4)
    assert not world.running
    world.sleep(3)
    assert [running.name for running in world.running] == ["d"]
    assert caplog.text.count("has sent nothing") == 1
    world.run("d").end()
    world.flow()
    assert client.status == 200
    assert is_done(world, process)


def test_a_process_that_was_cut_off_is_told_that_it_was_given_up(world, process, gateway):
    clients = [world.call(gateway, f"c{n}") for n in range(4)]
    world.flow()
    gateway.is_cut_off = True
    world.sleep(8)
    assert [client.has_ended for client in clients] == [False, False, False, True]
    assert clients[3].error.code == "unavailable"
    for n in range(3):
        world.run(f"c{n}").end()
    gateway.is_cut_off = False
    world.sleep(2)
    assert [client.status for client in clients] == [200, 200, 200, 503]
    assert is_done(world, process)


def test_nobody_is_given_up_while_the_bus_is_away(world, process, gateway):
    client = world.call(gateway, "c")
    world.flow()
    process.is_cut_off = gateway.is_cut_off = True
    world.sleep(30)
    process.is_cut_off = gateway.is_cut_off = False
    world.sleep(1)
    assert "c" in process.active.open_calls
    world.run("c").end()
    world.flow()
    assert client.status == 200


def test_a_call_over_the_bus_is_begun_anew_when_its_process_dies(world, process, gateway):
    world.ask("b")
    world.flow()
    world.assign(gateway)
    world.flow()
    assert world.run("b").process is process
    world.kill(process)
    world.sleep(4)
    assert world.running == []
    world.sleep(3)
    assert world.run("b").process is gateway
    assert gateway.active.open_calls.get("b").request.attempt == 2
    world.run("b").end()
    world.flow()
    assert world.replies("b") == [200]
    assert is_done(world, gateway)
    again = ["Arrived", "Dispatch", "Cancelled again", "Arrived", "Dispatch", "Finished"]
    assert life(world.records())[0]["b"] == again


def test_a_call_over_the_bus_is_refused_when_three_processes_have_died_of_it(world):
    """What was in hand beside it is done, one at a time once two have died."""
    for name in ("kills", "b", "c"):
        world.ask(name)
    together = []
    while not together or "kills" in together[-1]:
        process = world.process()
        world.assign(process)
        world.sleep(8)
        together.append({each.name for each in world.running})
        if "kills" in together[-1]:
            world.kill(process)
    while world.running:
        world.running[0].end()
        world.flow()
    assert together == [{"kills", "b", "c"}, {"kills", "b", "c"}, {"kills"}, {"b"}]
    assert [world.replies(name) for name in ("kills", "b", "c")] == [[502], [200], [200]]
    assert is_done(world, process)


# Taking over


def test_one_that_takes_over_announces_itself_before_it_says_anything(world, process):
    first, *others = world.logs[Topic.EVENTS]
    assert first.headers == {TAKEOVER_HEADER: "p0", POOL_HEADER: NAME}
    assert first.value is None
    assert {m.headers[EPOCH] for m in others} == {"0"}


def test_performers_are_warned_of_balancers_before(world, process):
    [warning] = world.logs[Topic.DISPATCHES]
    assert (warning.headers[EPOCH], warning.headers[PERFORMER]) == ("0", "")


def test_it_begins_when_it_has_caught_up(world):
    process = world.process()
    for n in range(3):
        world.tell("p9", Arrived(build.request(f"c{n}")))
    world.holder = process
    log = world.logs[Topic.REQUESTS]
    process.group.put(Assigned(Topic.REQUESTS, 0, -1001, ""), *log[:2])
    world.flow()
    assert not process.decides
    assert process.member.balancer.in_flight() == []
    process.group.put(*log[2:], CaughtUp(Topic.REQUESTS, 0))
    world.flow()
    assert process.decides
    assert len(process.member.balancer.in_flight()) == 3


def test_news_of_instances_that_come_while_it_reads_back_are_not_lost(world):
    process = world.process()
    process.member.feed(InstanceLeft("e1"))
    client = world.call(process, "c", model="new")
    world.settle()
    process.outbox.deliver(Topic.REQUESTS)
    process.is_deaf = True
    world.assign(process)
    world.flow()
    assert not process.decides, "it waits for what was decided before"
    process.member.feed(InstanceLeft("e0"))
    process.member.feed(InstanceJoined(build.instance("e1", models=("new",))))
    process.hear_again()
    world.flow()
    assert [*process.member.balancer.ledger.instances] == ["e1"]
    assert world.run("c").instance_id == "e1"
    world.run("c").end()
    world.flow()
    assert client.status == 200


def test_news_of_instances_that_change_limits_meanwhile_count(world):
    process = world.process()
    world.assign(process)
    process.member.feed(InstanceJoined(build.instance("e0", seqs=7)))
    world.flow()
    assert process.member.balancer.ledger.instances["e0"].max_num_seqs == 7


def test_on_standby_news_of_instances_are_kept(world, process, gateway):
    gateway.member.feed(InstanceLeft("e0"))
    world.assign(gateway)
    world.flow()
    assert [*gateway.member.balancer.ledger.instances] == ["e1"]


def test_a_partition_of_another_pool_changes_nothing(world, process):
    process.group.put(
        Assigned("kairos.requests", 1, 0, ""),
        ReceivedMessage(Topic.REQUESTS, 1, 41, 0, NAME, b"{", {TYPE_HEADER: "told"}),
        CaughtUp("kairos.requests", 1),
    )
    world.settle()
    assert process.decides
    assert world.logs[Topic.DEAD_LETTERS] == []
    process.group.put(Revoked(Topic.REQUESTS, 1))
    world.settle()
    assert process.decides


def test_commits_say_where_to_go_on_and_since_when_to_read_back(world, process, gateway):
    world.sleep(200)
    world.call(gateway, "c")
    world.flow()
    began_at = world.clock.now()
    world.sleep(100)
    offset, metadata = world.committed
    assert world.logs[Topic.REQUESTS][offset].value.count(b'"Arrived"')
    epoch = next(m.offset for m in world.logs[Topic.EVENTS] if TAKEOVER_HEADER in m.headers)
    assert metadata == f"events-since={began_at - active_module._RECALL_US},epoch={epoch}"
    world.run("c").end()
    world.flow()
    world.sleep(3)
    offset, metadata = world.committed
    assert offset >= len(world.logs[Topic.REQUESTS]) - 4
    assert int(metadata.split(",")[0].split("=")[1]) > began_at


def test_what_is_done_last_is_committed_on_leaving(world, process):
    world.tell("p9", Finished("x"))
    world.settle()
    world.leave(process)
    assert world.committed[0] == len(world.logs[Topic.REQUESTS])


@pytest.mark.parametrize("metadata", ["", "x", "events-since", "events-since=", "events-since=²"])
def test_without_a_known_instant_all_is_read_back(world, process, gateway, metadata):
    world.call(gateway, "c")
    world.flow()
    world.committed = (world.committed[0], metadata)
    world.kill(process)
    world.assign(gateway)
    world.flow()
    assert gateway.decides
    assert gateway.member.balancer.ledger.instance_of("c")


def test_calls_in_flight_are_known_to_the_next_and_not_started_again(world, process, gateway):
    clients = [world.call(gateway, f"c{n}") for n in range(5)]
    world.flow()
    world.sleep(3)
    world.kill(process)
    world.assign(gateway)
    world.flow()
    balancer = gateway.member.balancer
    assert (len(balancer.ledger), balancer.waiting) == (3, 2)
    assert len(world.starts) == 3
    for n in range(5):
        world.run(f"c{n}").end()
        world.flow()
    assert [client.status for client in clients] == [200] * 5
    assert is_done(world, gateway)


def test_what_was_decided_when_an_instance_joined_is_known_to_the_next(world, process, gateway):
    for each in (process, gateway):
        each.member.feed(InstanceLeft("e0"))
    for n in range(2):
        world.call(gateway, f"c{n}")
    world.flow()
    process.member.feed(InstanceJoined(world.fleet["e0"]))
    gateway.member.feed(InstanceJoined(world.fleet["e0"]))
    world.flow()
    assert len(world.running) == 2
    world.kill(process)
    world.assign(gateway)
    world.flow()
    assert len(gateway.member.balancer.ledger) == 2


@pytest.mark.parametrize("reaches", [0, 1])
def test_an_order_that_was_lost_is_given_again(world, process, gateway, reaches):
    client = world.call(gateway, "c")
    world.settle()
    gateway.outbox.deliver(Topic.REQUESTS)
    world.settle()
    process.outbox.deliver(Topic.EVENTS, reaches)
    world.kill(process)
    world.assign(gateway)
    world.flow()
    world.run("c").end()
    world.flow()
    assert client.status == 200
    assert is_done(world, gateway)
    assert life(world.records())[0]["c"] == ["Arrived", "Dispatch", "Finished"]


def test_a_refusal_that_was_lost_is_told_again(world, process, gateway):
    clients = [world.call(gateway, f"c{n}") for n in range(4)]
    world.flow()
    for name in ("e0", "e1"):
        process.member.feed(InstanceLeft(name))
    world.settle()
    process.outbox.deliver(Topic.EVENTS)
    world.kill(process)
    world.assign(gateway)
    world.flow()
    assert clients[3].error.code == "no_instance"
    for n in range(3):
        world.run(f"c{n}").end()
    world.flow()
    assert is_done(world, gateway)


def test_a_refused_call_over_the_bus_is_answered_by_the_next(world, process, gateway):
    for n in range(4):
        world.ask(f"b{n}")
    world.flow()
    for each in (process, gateway):
        for name in ("e0", "e1"):
            each.member.feed(InstanceLeft(name))
    world.settle()
    process.outbox.deliver(Topic.EVENTS)
    world.settle()
    process.outbox.acknowledge(Topic.EVENTS)
    world.sleep(0)
    process.is_cut_off = True
    world.sleep(2)
    world.kill(process)
    world.assign(gateway)
    world.sleep(10)
    assert [world.replies(f"b{n}") for n in range(4)] == [[503]] * 4
    assert is_done(world, gateway)


def test_a_refused_call_over_the_bus_is_not_done_before_its_answer_is_safe(world, process):
    for n in range(4):
        world.ask(f"b{n}")
    world.flow()
    offset = process.active.open_calls.get("b3").cause
    for name in ("e0", "e1"):
        process.member.feed(InstanceLeft(name))
    world.settle()
    process.outbox.deliver(Topic.EVENTS)
    process.outbox.acknowledge(Topic.EVENTS)
    world.settle()
    assert offset in undone(process)
    world.flow()
    assert world.replies("b3") == [503]
    assert offset not in undone(process)


def test_who_performs_a_call_is_known_even_after_two_takeovers(world, process, gateway):
    """It waited with the first, ran with the second, who died: the first is alive, but has it
    no more."""
    for n in range(4):
        world.ask(f"b{n}")
    world.flow()
    world.assign(gateway)
    world.flow()
    world.run("b0").end()
    world.flow()
    assert world.run("b3").process is gateway
    world.kill(gateway)
    world.assign(process)
    world.flow()
    world.sleep(8)
    assert world.run("b3").process is process
    for name in ("b1", "b2", "b3"):
        world.run(name).end()
    world.flow()
    assert [world.replies(f"b{n}") for n in range(4)] == [[200]] * 4
    assert is_done(world, process)


def test_a_waiting_call_whose_deadline_passed_meanwhile_is_answered_and_forgotten(
    world, process, gateway
):
    for n in range(3):
        world.ask(f"b{n}")
    world.ask("late", **{"kairos-deadline": str(world.clock.now() + 5 * SECOND)})
    world.flow()
    world.kill(process)
    world.loop.seconds += 6
    world.assign(gateway)
    world.sleep(1)
    assert world.replies("late") == [504]
    assert "late" not in gateway.active.open_calls
    assert gateway.member.balancer.waiting == 0


def test_an_older_balancer_that_goes_on_is_not_counted(world, process, gateway):
    """It decides, and its records come after the announcement of another."""
    process.is_cut_off = process.is_deaf = True
    world.assign(gateway, orderly=False)
    world.flow()
    world.ask("b")
    world.flow()
    process.outbox.deliver(Topic.EVENTS)
    third = world.process()
    world.kill(gateway)
    world.assign(third)
    world.flow()
    assert len([m for m in world.logs[Topic.EVENTS] if m.headers.get(CAUSE)]) == 2
    assert third.active.open_calls.get("b").performer == "p1", "what the zombie said is left out"


def test_a_zombie_is_not_obeyed(world, process, gateway):
    third = world.process()
    world.flow()
    process.is_deaf = True
    world.assign(gateway, orderly=False)
    world.flow()
    client = world.call(third, "c")
    world.settle()
    third.outbox.deliver(Topic.REQUESTS)
    world.settle()
    process.outbox.deliver(Topic.EVENTS)
    process.outbox.acknowledge(Topic.EVENTS)
    world.settle()
    assert process.outbox.unsent[Topic.DISPATCHES], "it has decided"
    process.outbox.deliver(Topic.DISPATCHES)
    world.settle()
    assert not world.starts
    world.flow()
    assert len(world.starts) == 1
    world.run("c").end()
    world.flow()
    assert client.status == 200
    assert is_done(world, gateway)


def test_one_whose_announcement_came_too_late_does_not_silence_the_other(world, process, gateway):
    """It was given the partition, and lost it again before its announcement arrived."""
    world.assign(gateway)
    gateway.is_cut_off = True
    world.assign(process)
    world.flow()
    gateway.is_cut_off = False
    world.flow()
    world.sleep(3)
    assert not process.decides, "it begins anew"
    assert world.holder is None
    client = world.call(gateway, "c")
    world.flow()
    world.assign(process)
    world.flow()
    world.run("c").end()
    world.flow()
    assert client.status == 200
    assert life(world.records())[0]["c"] == ["Arrived", "Dispatch", "Finished"]
    assert is_done(world, process)


def test_what_was_done_by_one_that_is_superseded_is_not_committed(world, process, gateway):
    world.sleep(2)
    before = world.committed
    world.append(Topic.EVENTS, NAME, None, {TAKEOVER_HEADER: "late", POOL_HEADER: NAME})
    world.tell("p9", Finished("x"))
    world.sleep(3)
    assert world.committed == before or world.committed[0] <= before[0] + 4
    assert world.holder is None


def test_another_pools_takeover_is_none_of_ours(world, process):
    world.append(Topic.EVENTS, "other", None, {TAKEOVER_HEADER: "late", POOL_HEADER: "other"})
    world.sleep(3)
    assert process.decides


@pytest.mark.parametrize(
    ("value", "headers"),
    [
        (b"{", {POOL_HEADER: NAME, EPOCH: "0"}),
        (b"\xff", {POOL_HEADER: NAME, EPOCH: "0"}),
        (None, {POOL_HEADER: NAME, EPOCH: "0"}),
        (b"[" * 50_000, {POOL_HEADER: NAME, EPOCH: "0"}),
        (b'{"at":1,"event":{"type":"Tick"}}', {POOL_HEADER: NAME}),
        (b'{"at":1,"event":{"type":"Tick"}}', {POOL_HEADER: NAME, EPOCH: "x"}),
        (b'{"at":1,"event":{"type":"Tick"}}', {POOL_HEADER: NAME, EPOCH: "0", CAUSE: "x"}),
        (b"{", {POOL_HEADER: "other", EPOCH: "99"}),
        (b"{", {}),
    ],
)
def test_records_that_make_no_sense_do_not_keep_anybody_from_taking_over(
    world, process, gateway, value, headers
):
    world.append(Topic.EVENTS, NAME, value, headers)
    world.call(gateway, "c")
    world.flow()
    world.kill(process)
    world.assign(gateway)
    world.flow()
    assert gateway.decides
    assert len(gateway.member.balancer.ledger) == 1


def test_a_host_whose_clock_is_far_ahead_does_not_keep_the_next_from_taking_over(
    world, process, gateway
):
    ahead = world.clock.now() + 3_600 * SECOND
    world.committed = (len(world.logs[Topic.REQUESTS]), f"events-since={ahead}")
    world.kill(process)
    world.assign(gateway)
    world.flow()
    assert gateway.decides


def test_a_record_from_the_future_counts_as_of_now(world, process, gateway):
    world.call(gateway, "c")
    world.flow()
    [message] = [m for m in world.logs[Topic.EVENTS] if CAUSE in m.headers]
    record = msgspec.json.decode(message.value)
    record["at"] += 3_600 * SECOND
    late = msgspec.structs.replace(message, value=msgspec.json.encode(record))
    world.logs[Topic.EVENTS][message.offset] = late
    world.kill(process)
    world.assign(gateway)
    world.flow()
    world.run("c").end()
    world.flow()
    assert is_done(world, gateway)


def test_what_is_asked_again_of_one_who_began_it_in_another_life_is_not_lost(
    world, process, gateway
):
    """It decided although it was superseded, so only it knows of the call that it runs."""
    process.is_cut_off = False
    world.append(Topic.EVENTS, NAME, None, {TAKEOVER_HEADER: "late", POOL_HEADER: NAME})
    world.ask("b")
    world.settle()
    process.outbox.deliver(Topic.EVENTS)
    process.outbox.acknowledge(Topic.EVENTS)
    world.settle()
    assert world.run("b").process is process
    world.sleep(2)
    world.assign(process)
    world.sleep(2)
    offset = next(m.offset for m in world.logs[Topic.REQUESTS] if m.headers[TYPE_HEADER] == "call")
    assert world.committed[0] <= offset
    world.run("b").end()
    world.flow()
    assert world.replies("b") == [200]
    assert is_done(world, process)


def test_a_successor_waits_for_messages_that_were_decided_on_after_it_caught_up(
    world, process, gateway
):
    for n in range(3):
        world.call(gateway, f"c{n}")
    world.flow()
    process.is_deaf = True
    world.assign(gateway, orderly=False)
    client = world.call(process, "late")
    world.settle()
    process.outbox.deliver(Topic.REQUESTS)
    world.settle()
    process.outbox.deliver(Topic.EVENTS)
    process.outbox.acknowledge(Topic.EVENTS)
    world.settle()
    process.hear_again()
    world.flow()
    assert gateway.decides
    assert [each.status for each in gateway.clients] == [None] * 3
    assert not client.has_ended, "it waits"
    for name in ("c0", "late", "c1", "c2"):
        world.run(name).end()
        world.flow()
    assert client.status == 200
    assert is_done(world, gateway)


def test_a_topic_that_lost_its_end_does_not_keep_a_successor_waiting_for_ever(
    world, process, gateway
):
    world.call(gateway, "c")
    world.flow()
    lost = world.logs[Topic.REQUESTS].pop()
    assert b"Arrived" in lost.value
    world.kill(process)
    world.assign(gateway)
    world.settle()
    assert not gateway.decides
    world.sleep(12)
    assert gateway.decides


def test_replies_go_where_the_caller_said_and_nowhere_else(world, process):
    world.ask("b", f"{Topic.REPLIES}x")
    world.flow()
    world.run("b").end()
    world.flow()
    assert world.replies("b", f"{Topic.REPLIES}x") == [200]
    assert world.logs[REPLY_TO] == []


def test_after_a_record_that_is_missing_there_are_no_others(world, process, gateway):
    process.outbox.is_full = True
    for name in "cd":
        client = world.call(gateway, name)
        world.settle()
        gateway.outbox.deliver(Topic.REQUESTS)
        world.settle()
        process.outbox.is_full = False
    assert not process.outbox.unsent[Topic.EVENTS]
    world.flow()
    assert not client.has_ended
    assert world.starts == []


@pytest.mark.parametrize("old", [Finished("b"), Failed("b", "x"), Cancelled("b")])
def test_how_a_call_ended_in_another_life_of_this_process_does_not_end_it_now(world, process, old):
    world.ask("b")
    world.flow()
    world.tell("p0", old)
    world.flow()
    assert "b" in process.active.open_calls
    world.run("b").end()
    world.flow()
    assert world.replies("b") == [200]
    assert is_done(world, process)
