"""The decider and a worker's sink, without sockets: what one says is handed to the other."""

import asyncio
import os

import msgspec
import pytest

from kairos.cluster.decisions.reports import LOST_S
from kairos.cluster.workers import decider as deciders
from kairos.cluster.workers import fact_sink
from kairos.cluster.workers import journal as journals
from kairos.cluster.workers.decider import Decider
from kairos.cluster.workers.deciding import Elsewhere
from kairos.cluster.workers.fact_sink import RemoteFactSink
from kairos.cluster.workers.journal import Journal
from kairos.cluster.workers.messages import Engines, Fact, FromWorker, Hello, InFlight, OrderFrame
from kairos.core import (
    PLACEMENTS,
    POLICIES,
    SECOND,
    Arrived,
    Balancer,
    Bounced,
    Cancelled,
    Failed,
    Finished,
    Instance,
    InstanceJoined,
    InstanceLeft,
    InstanceStatus,
    KairosError,
    PlanDeclared,
    PlannedOperator,
    PlannedWork,
    Request,
    Runtime,
    Unavailable,
    UpstreamUnreachable,
    WorkflowEnded,
)
from kairos.proxy import EngineClient, HttpEngine
from kairos.settings import EngineSettings
from tests.support.waiting import Told


class Clock:
    def __init__(self):
        self.at = 1_000

    def now(self):
        return self.at


class Wire:
    """Stands for a `Link`: keeps what is sent."""

    def __init__(self):
        self.sent, self.problem = [], None

    def send(self, payload):
        self.sent.append(payload)

    def abort(self, problem):
        self.problem = problem


class Deciding:
    """A decider that decides for one instance of one slot."""

    def __init__(self, files, clock, journal=None):
        self.decider = Decider(journal or Journal(files), clock)
        self.balancer = Balancer(POLICIES["fcfs"], PLACEMENTS["kairos"])
        for record in self.decider.recall():
            self.balancer.replay(record)
        self.facts, self.troubles = [], []
        runtime = Runtime(
            self.balancer, Elsewhere(), clock,
            (self.decider, lambda record: self.facts.append(record.event)),
        )  # fmt: skip
        self.feed = runtime.feed
        self.decider.begin(runtime.feed, self.troubles.append, lambda *_: None)

    def open(self):
        """As `Decider.link` does for a connection."""
        wire, link = Wire(), self.decider.link()
        link.send, link.abort = wire.send, wire.abort
        return link, wire

    def told(self, kind):
        return [event for event in self.facts if isinstance(event, kind)]


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
async def files():
    made = journals.create()
    yield made
    await asyncio.sleep(0)
    for each in made:
        os.close(each)


@pytest.fixture
async def deciding(files, clock):
    deciding = Deciding(files, clock)
    limits = Instance(id="i", models=("tiny",), max_num_seqs=1)
    deciding.feed(InstanceJoined(limits))
    return deciding


def request(name):
    return Request(
        id=name, workflow_id=name, model="tiny", workflow_started_at=1, arrived_at=1,
        prompt_tokens=10, completion_tokens=10,
    )  # fmt: skip


def say(deciding, link, *messages):
    deciding.decider._read(link, msgspec.msgpack.encode(list(messages)))


async def ordered(wire):
    """What a worker was told, since it was asked last."""
    await asyncio.sleep(0)
    orders = [msgspec.msgpack.decode(each, type=OrderFrame) for each in wire.sent]
    wire.sent.clear()
    commands = [
        (type(command).__name__, command.request_id, turn)
        for each in orders
        for command, turn in zip(each.commands, each.turns, strict=True)
    ]
    return commands, max((each.acknowledged for each in orders), default=0)


async def heard(wire):
    """Of instances, since it was asked last."""
    await asyncio.sleep(0)
    frames = [msgspec.msgpack.decode(each, type=OrderFrame) for each in wire.sent]
    wire.sent.clear()
    return [(type(each).__name__, name_of(each)) for frame in frames for each in frame.news]


def name_of(event):
    return event.instance.id if isinstance(event, InstanceJoined) else event.instance_id


async def test_a_call_is_sent_on_its_turn_and_the_fact_is_acknowledged(deciding):
    link, wire = deciding.open()
    say(deciding, link, Hello("w"), InFlight({}), Fact(1, Arrived(request("a")), 7))
    assert await ordered(wire) == ([("Dispatch", "a", 7)], 1)


async def test_a_refusal_at_arrival_comes_back_with_its_turn(deciding):
    link, wire = deciding.open()
    other = msgspec.structs.replace(request("a"), model="nope")
    say(deciding, link, Hello("w"), Fact(1, Arrived(other), 3))
    assert await ordered(wire) == ([("Declined", "a", 3)], 1)


async def test_an_id_that_is_in_flight_at_another_worker_is_refused(deciding):
    (one, _), (two, wire) = deciding.open(), deciding.open()
    say(deciding, one, Hello("w"), Fact(1, Arrived(request("a")), 1))
    say(deciding, two, Hello("v"), Fact(1, Arrived(request("a")), 2))
    assert await ordered(wire) == ([("Declined", "a", 2)], 1)
    say(deciding, two, Fact(2, Failed("a", "request_in_flight")))
    assert deciding.told(Failed) == []  # the other one's goes on


async def test_a_call_that_waits_again_has_a_new_turn(deciding):
    link, wire = deciding.open()
    say(deciding, link, Hello("w"), Fact(1, Arrived(request("a")), 1))
    deciding.feed(InstanceJoined(Instance(id="j", models=("tiny",), max_num_seqs=1)))
    await ordered(wire)
    say(deciding, link, Fact(2, Bounced("a", "busy", about_itself=True), 2))
    assert await ordered(wire) == ([("Dispatch", "a", 2)], 2)


async def test_a_call_that_was_given_up_while_its_instance_failed_it_ends(deciding):
    """Its worker knows it on a later turn than the one that the refusal was of."""
    link, wire = deciding.open()
    say(deciding, link, Hello("w"), Fact(1, Arrived(request("a")), 1))
    workflow = request("a").workflow_id
    deciding.feed(WorkflowEnded("default", workflow, cancelled=True))
    await ordered(wire)
    say(deciding, link, Fact(2, Bounced("a", "broke"), 2))
    assert await ordered(wire) == ([("Declined", "a", 2)], 2)


async def test_a_worker_hears_which_instances_there_are_and_what_becomes_of_them(
    deciding, files, clock
):
    link, wire = deciding.open()
    say(deciding, link, Hello("w"))
    assert await heard(wire) == [("InstanceJoined", "i")]
    deciding.feed(InstanceJoined(Instance(id="j", models=("tiny",), max_num_seqs=1)))
    deciding.feed(InstanceStatus("j", waiting=1))
    deciding.feed(InstanceLeft("i"))
    told = [("InstanceJoined", "j"), ("InstanceStatus", "j"), ("InstanceLeft", "i")]
    assert await heard(wire) == told
    link, wire = deciding.open()
    say(deciding, link, Hello("v"))
    assert await heard(wire) == [("InstanceJoined", "j")]


async def used(wire):
    """Engines that were sent to a worker for its use, since the last question."""
    await asyncio.sleep(0)
    frames = [msgspec.msgpack.decode(each, type=OrderFrame) for each in wire.sent]
    wire.sent.clear()
    return [each.engines for each in frames if each.engines is not None]


async def test_workers_of_before_and_after_a_restart_are_told_which_engines_to_use(
    deciding, files, clock
):
    there = Engines((EngineSettings(url="http://i:8000"),), draining=("i",))
    link, wire = deciding.open()
    say(deciding, link, Hello("w"))
    assert await used(wire) == [Engines()]
    deciding.decider.use(there)
    assert await used(wire) == [there]
    deciding.decider.use(there)
    assert await used(wire) == []  # it is no news
    for each in (deciding, Deciding(files, clock)):
        link, wire = each.open()
        say(each, link, Hello("v"))
        assert await used(wire) == [there]


async def test_a_new_file_of_the_journal_keeps_engines_and_numbers_of_facts(files, clock):
    deciding = Deciding(files, clock, Journal(files, segment_bytes=1))
    deciding.feed(InstanceJoined(Instance(id="i", models=("tiny",), max_num_seqs=1)))
    there = Engines((EngineSettings(url="http://i:8000"),), draining=("i",))
    deciding.decider.use(there)
    link, wire = deciding.open()
    say(deciding, link, Hello("w"), Fact(1, Arrived(request("a")), 1), Fact(2, Cancelled("a")))
    for number in range(1, 5):
        await ordered(wire)
        other, _ = deciding.open()
        say(deciding, other, Hello(f"v{number}"), Fact(1, Arrived(request(f"b{number}")), 1))
    await ordered(wire)
    successor = Deciding(files, clock)
    link, wire = successor.open()
    say(successor, link, Hello("w"))
    await asyncio.sleep(0)
    (frame,) = (msgspec.msgpack.decode(each, type=OrderFrame) for each in wire.sent)
    assert (frame.acknowledged, frame.engines) == (2, there)


async def test_what_it_hears_of_instances_goes_to_whoever_watches_for_stalls(
    sink, engine, monkeypatch
):
    news = InstanceJoined(Instance(id="j", models=("tiny",), max_num_seqs=1)), InstanceLeft("i")
    monkeypatch.setattr(engine.stall_watch, "hear", (heard := []).append)
    sink._read(None, msgspec.msgpack.encode(OrderFrame(news=news)))
    assert heard == [*news]


async def test_whoever_has_no_name_is_not_heard(deciding):
    link, _ = deciding.open()
    with pytest.raises(ValueError):
        say(deciding, link, Fact(1, Arrived(request("a")), 1))


async def test_a_fact_that_is_refused_is_acknowledged_and_what_follows_is_heard(deciding, caplog):
    """Were the link cut, the worker would tell it again, and lose its calls each time."""
    link, wire = deciding.open()
    circle = PlanDeclared("default", "app", PlannedWork((PlannedOperator("a", (0,)),)))
    say(deciding, link, Hello("w"), Fact(1, circle), Fact(2, Arrived(request("a")), 7))
    assert await ordered(wire) == ([("Dispatch", "a", 7)], 2)
    assert wire.problem is None
    assert "PlanDeclared of w is left out" in caplog.text


async def test_a_call_whose_fact_is_refused_is_answered(deciding):
    link, wire = deciding.open()
    say(deciding, link, Hello("w"), Fact(1, Arrived(request("a")), 1))
    await ordered(wire)

    def refuse(_):
        raise Unavailable("not now")

    deciding.decider.begin(refuse, deciding.troubles.append, lambda *_: None)
    say(deciding, link, Fact(2, Bounced("a", "busy", about_itself=True), 2))
    assert await ordered(wire) == ([("Declined", "a", 2)], 2)


async def test_a_worker_that_goes_loses_its_calls_once_and_their_room_is_others(deciding):
    (one, _), (two, wire) = deciding.open(), deciding.open()
    say(deciding, one, Hello("w"), Fact(1, Arrived(request("a")), 1))
    say(deciding, two, Hello("v"), Fact(1, Arrived(request("b")), 1))
    deciding.decider._gone(one)
    assert deciding.told(Cancelled) == [Cancelled("a")]
    assert (await ordered(wire))[0] == [("Dispatch", "b", 1)]


async def test_the_next_decider_goes_on_with_the_queue_as_it_was(deciding, files, clock):
    link, wire = deciding.open()
    arrivals = [Fact(n, Arrived(request(f"call-{n}")), n) for n in range(1, 6)]
    say(deciding, link, Hello("w"), *arrivals)
    await ordered(wire)
    successor = Deciding(files, clock)
    assert successor.balancer.in_flight() == deciding.balancer.in_flight()
    link, wire = successor.open()
    # The last two were told, but not acknowledged; a sixth has come meanwhile.
    missed = [*arrivals[3:], Fact(6, Arrived(request("call-6")), 6)]
    turns = {f"call-{n}": n for n in range(1, 7)}
    say(successor, link, Hello("w"), *missed, InFlight(turns))
    assert len(successor.told(Arrived)) == 1
    assert await ordered(wire) == ([("Dispatch", "call-1", 1)], 6)  # it may have missed that
    for number in range(1, 6):
        say(successor, link, Fact(6 + number, Finished(f"call-{number}")))
    sent = (await ordered(wire))[0]
    assert sent == [("Dispatch", f"call-{n}", n) for n in range(2, 7)]


async def test_calls_of_a_worker_that_does_not_come_back_end(deciding, files, clock, monkeypatch):
    monkeypatch.setattr(deciders, "_WATCH_S", 0.01)
    link, wire = deciding.open()
    say(deciding, link, Hello("w"), Fact(1, Arrived(request("a")), 1))
    await ordered(wire)
    successor = Deciding(files, clock)
    watching = asyncio.create_task(successor.decider.watch())
    until = clock.at + int((LOST_S + 2) * SECOND)
    async with asyncio.timeout(60):
        while not successor.told(Cancelled):
            clock.at = min(clock.at + SECOND // 10, until)
            await asyncio.sleep(0.01)
    watching.cancel()
    assert successor.told(Cancelled) == [Cancelled("a")]


async def test_a_call_that_nobody_knows_any_more_is_answered(deciding):
    link, wire = deciding.open()
    say(deciding, link, Hello("w"), InFlight({"a": 4}))
    assert (await ordered(wire))[0] == [("Declined", "a", 4)]


@pytest.fixture
def engine():
    return HttpEngine(EngineClient())


@pytest.fixture
def sink(engine, clock, tmp_path):
    return RemoteFactSink(tmp_path / "none", "w", engine, clock, max_wait_s=10)


async def said(wire):
    await asyncio.sleep(0)
    told = [m for each in wire.sent for m in msgspec.msgpack.decode(each, type=list[FromWorker])]
    wire.sent.clear()
    return told


def acknowledge(sink, number, *commands):
    orders = OrderFrame(number, tuple(c for c, _ in commands), tuple(t for _, t in commands))
    sink._read(None, msgspec.msgpack.encode(orders))


async def test_facts_that_are_not_safe_are_told_again_in_order_with_what_is_in_flight(sink, engine):
    engine.calls.expect("a", Told())
    sink.feed(Arrived(request("a")))  # nobody is there yet
    wire = Wire()
    sink._introduce(wire)
    assert await said(wire) == [
        Hello("w"), Fact(1, Arrived(request("a")), engine.calls.turn("a")),
        InFlight({"a": engine.calls.turn("a")}),
    ]  # fmt: skip
    acknowledge(sink, 1)
    engine.calls.forget("a")
    sink.feed(Finished("a"))
    assert await said(wire) == [Fact(2, Finished("a"))]
    sink._gone(wire)
    sink._introduce(wire)
    assert await said(wire) == [Hello("w"), Fact(2, Finished("a")), InFlight({})]


async def test_trouble_is_told_before_the_fact_about_the_call(sink):
    wire = Wire()
    sink._introduce(wire)
    await said(wire)
    sink.hear_of(UpstreamUnreachable("i", "ClientError", refused=True))
    sink.feed(Failed("a", "upstream_unreachable"))
    assert [type(each).__name__ for each in await said(wire)] == ["Trouble", "Fact"]


async def test_what_is_told_in_one_turn_of_the_loop_is_one_frame(sink):
    wire = Wire()
    sink._introduce(wire)
    await said(wire)
    for name in "abc":
        sink.feed(Finished(name))
    await asyncio.sleep(0)
    assert len(wire.sent) == 1


async def test_while_nobody_decides_a_bounded_number_of_facts_is_kept(sink, engine, monkeypatch):
    monkeypatch.setattr(fact_sink, "MAX_UNSAFE", 2)
    for name in "ab":
        engine.calls.expect(name, Told())
        sink.feed(Arrived(request(name)))
    engine.calls.expect("c", Told())
    with pytest.raises(KairosError):
        sink.feed(Arrived(request("c")))
    sink.feed(Failed("a", "client"))  # that one has ended is never lost


async def test_a_plan_that_is_declared_while_nobody_decides_is_refused_and_not_kept(sink):
    declared = PlanDeclared("default", "app", PlannedWork((PlannedOperator("a"),)))
    with pytest.raises(Unavailable):
        sink.feed(declared)
    wire = Wire()
    sink._introduce(wire)
    assert await said(wire) == [Hello("w"), InFlight({})]
    sink.feed(declared)
    assert await said(wire) == [Fact(1, declared)]


async def test_a_call_that_nobody_decides_on_ends_at_last(sink, engine, clock):
    engine.calls.expect("a", call := Told())
    sink.feed(Arrived(request("a")))
    clock.at += 41 * SECOND
    sink._awaited.give_up()
    assert call.said == [("waited_too_long", False)]
