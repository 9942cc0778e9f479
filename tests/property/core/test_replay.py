"""A balancer that replays another's log is as good as the one that wrote it: told the same facts
from there on, it decides the same."""

import dataclasses

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kairos.core import (
    PLACEMENTS,
    POLICIES,
    SECOND,
    AgentRank,
    Arrived,
    Bounced,
    Budget,
    Cancelled,
    Dispatch,
    Failed,
    Finished,
    FirstToken,
    InstanceJoined,
    InstanceLeft,
    InstanceStatus,
    KairosError,
    PlanDeclared,
    PlannedOperator,
    PlannedWork,
    ProfilesLearnt,
    Progressed,
    Record,
    Refuse,
    Tick,
    WorkflowEnded,
)
from tests.support.core import learnt
from tests.support.examples import examples
from tests.support.simulate import build

pytestmark = pytest.mark.both

FLEET = [
    build.instance("a", models=("m", "n"), seqs=2, kv=100, max_num_batched_tokens=60),
    build.instance("b", seqs=2, kv=60, priority=True),
    build.instance("c", seqs=1, prefix_caching=False),
]
BODIES = [1, 2, None]  # few, so that they fail again and again
PLANS = [
    PlannedWork((PlannedOperator("agent0"), PlannedOperator("agent1", (0,)))),
    PlannedWork(
        (
            PlannedOperator("agent2", repeats=0, completion_tokens=30.0),
            PlannedOperator("agent0", (0,), repeats=0, calls=3.0),
            PlannedOperator("agent1", (1,), calls=0.5),
        )
    ),
]
# Each policy, and each placement, with the other as it is by default.
DECIDERS = sorted({(p, "kairos") for p in POLICIES} | {("kairos", p) for p in PLACEMENTS})
LIMITS = {
    "max_waiting": 12,
    "max_wait_us": 5 * SECOND,
    "guard": build.overdue_after(SECOND // 10),
    "budget": Budget(wall_us=9 * SECOND),
}


@dataclasses.dataclass
class Fact:
    """What happens next; of whom, where that matters, is drawn from those who are here."""

    kind: str
    us: int
    number: int
    prompt: int
    completion: int


FACTS = st.lists(
    st.builds(
        Fact,
        kind=st.sampled_from(
            ["arrive"] * 10
            + ["finish"] * 5
            + ["fail", "cancel", "join", "leave", "learn", "rank", "end", "tick", "first token"]
            + ["declare"]
            + ["progress", "status", "bounce", "break"] * 2
        ),
        us=st.integers(0, 6) | st.sampled_from([SECOND // 2, 3 * SECOND]),
        number=st.integers(0, 10**6),
        prompt=st.integers(1, 60),
        completion=st.integers(1, 40),
    ),
    min_size=40,
    max_size=120,
)


class Story:
    """Facts told to one balancer, and the log of it."""

    def __init__(self, policy, placement):
        self.policy, self.placement = policy, placement
        self.balancer = self.fresh()
        self.at, self.named, self.log = 0, 0, []
        for instance in FLEET:
            self.tell(InstanceJoined(instance))

    def fresh(self):
        return build.balancer(policy=self.policy, placement=self.placement, **LIMITS)

    def tell(self, event):
        try:
            commands = self.balancer.handle(event, self.at)
        except KairosError:
            return
        self.log.append(Record(self.at, event, tuple(commands)))

    def go_on(self, facts):
        for fact in facts:
            self.at += fact.us
            self.tell(self.event(fact))

    def event(self, fact):
        if fact.kind == "arrive":
            return Arrived(self.request(fact), BODIES[fact.number % len(BODIES)])
        number = fact.number
        here = [request for request, _ in self.balancer.in_flight()]
        name = here[number % len(here)].id if here else "nobody"
        app, agent, instance = f"app{number % 2}", f"agent{number % 3}", FLEET[number % 3]
        seconds = [(1 + number % 7) * SECOND]
        tokens = learnt.distribution([number % 40, 1 + number % 90])
        profile = learnt.profile(
            agent, seconds, app=app, tenant="default", completion_tokens=tokens
        )
        rank = AgentRank("default", app, agent, number % 5)
        return {
            "finish": Finished(name, completion_tokens=number % 50, cached_tokens=number % 9),
            "fail": Failed(name, "why"),
            "break": Failed(name, "why", by_instance=True, body=BODIES[number % len(BODIES)]),
            "bounce": Bounced(name, "why", BODIES[number % 3], about_itself=number % 5 == 0),
            "cancel": Cancelled(name),
            "first token": FirstToken(name),
            "progress": Progressed({each.id: number % 30 for each in here[:3]}),
            "status": InstanceStatus(
                instance.id,
                kv_used=(number % 11) / 10,
                waiting_for_room=number % 2,
                preemptions=number % 3,
            ),
            "join": InstanceJoined(instance),
            "leave": InstanceLeft(instance.id),
            "learn": ProfilesLearnt((profile,)),
            "rank": ProfilesLearnt(ranks=(rank,)),
            "declare": PlanDeclared("default", app, PLANS[number % len(PLANS)]),
            "end": WorkflowEnded("default", f"w{number % 4}"),
            "tick": Tick(),
        }[fact.kind]

    def request(self, fact):
        self.named += 1
        number = fact.number % 4
        return build.request(
            f"r{self.named}",
            at=self.at,
            prompt=fact.prompt,
            completion=fact.completion,
            model=("m", "m", "n", None)[number],
            workflow_id=f"w{number}",
            app=f"app{number % 2}",
            agent=f"agent{fact.number % 3}",
            budget=(None, None, Budget(calls=9), Budget(tokens=400))[fact.number % 16 // 4],
            deadline_at=self.at + 2 * SECOND if fact.number % 5 == 0 else None,
            prefix=tuple(range(10 * number, 10 * number + fact.prompt // 15)),
            prefix_units=64 * max(1, fact.prompt // 15),
        )


def replayed(log, fresh):
    """From what the log says when it is read back."""
    for record in msgspec.json.decode(msgspec.json.encode(log), type=list[Record]):
        fresh.replay(record)
    return fresh


def seen(balancer):
    """The requests here and where they run, and who is overdue, in the order of the queues."""
    overdue = [
        name
        for queue in balancer._queues._queues.values()
        for name, waiting in queue._waiting.items()
        if waiting.overdue_at is not None
    ]
    return sorted(balancer.in_flight(), key=lambda each: each[0].id), sorted(overdue)


@pytest.mark.parametrize(("policy", "placement"), DECIDERS)
@given(before=FACTS, after=FACTS)
@examples(25, gate=10)
def test_a_balancer_that_replayed_the_whole_log_decides_as_the_first_one(
    policy, placement, before, after
):
    story = Story(policy, placement)
    story.go_on(before)
    second = replayed(story.log, story.fresh())
    assert seen(second) == seen(story.balancer)
    taken_over = len(story.log)

    story.go_on(after)

    for record in story.log[taken_over:]:
        assert tuple(second.handle(record.event, record.at)) == record.commands
    assert seen(second) == seen(story.balancer)


@given(before=FACTS, died=st.sets(st.sampled_from(FLEET)), after=FACTS)
@examples(200)
def test_a_successor_that_sees_the_instances_itself_goes_on_from_what_was_decided(
    before, died, after
):
    """As on a bus: what was said of instances then is left out, and that they are here, or are not,
    is told after the log."""
    story = Story("kairos", "kairos")
    story.go_on(before)
    successor = story.fresh()
    for instance in FLEET:
        successor.replay(Record(0, InstanceJoined(instance)))
    for record in story.log:
        is_left_out = isinstance(record.event, InstanceJoined | InstanceLeft | InstanceStatus)
        told = Tick() if is_left_out else record.event
        successor.replay(msgspec.structs.replace(record, event=told))
    assert seen(successor)[0] == seen(story.balancer)[0]

    story.balancer = successor
    for instance in FLEET:
        is_gone = instance in died
        story.tell(InstanceLeft(instance.id) if is_gone else InstanceJoined(instance))
    story.go_on(after)

    in_flight = successor.in_flight()
    assert len(successor.ledger) == sum(where is not None for _, where in in_flight)
    assert successor.waiting == len(in_flight) - len(successor.ledger)


def layout(balancer):
    """How the heaps lie, from which it is told how many go before a request with a deadline."""
    return {
        model: (queue.by_key._heap, queue.by_key._old, queue._front._entries)
        for model, queue in balancer._queues._queues.items()
    }


@pytest.mark.parametrize("policy", POLICIES)
def test_refusals_while_keys_are_renewed_leave_no_trace_for_a_replay_to_miss(policy):
    story = Story(policy, "least-kv")
    story.balancer = build.balancer(policy=policy, placement="least-kv", max_waiting=600)
    story.log.clear()
    story.tell(InstanceJoined(FLEET[0]))
    for n in range(700):  # of which some are refused
        story.at += 1
        story.tell(Arrived(build.request(f"r{n}", at=story.at, prompt=1 + n % 60, agent=f"a{n}")))
        if n == 600:
            story.tell(ProfilesLearnt(ranks=(AgentRank("default", "", "a7", 3),)))

    fresh = build.balancer(policy=policy, placement="least-kv", max_waiting=600)
    second = replayed(story.log, fresh)

    assert layout(second) == layout(story.balancer)
    assert seen(second) == seen(story.balancer)


@given(before=FACTS, since=st.integers(0, 30))
@examples(100)
def test_a_log_from_before_the_oldest_call_in_flight_gives_the_same_queue_and_bookings(
    before, since
):
    story = Story("kairos", "least-kv")
    story.go_on(before)
    here = {request.id for request, _ in story.balancer.in_flight()}
    arrivals = [
        n
        for n, record in enumerate(story.log)
        if isinstance(record.event, Arrived) and record.event.request.id in here
    ]
    begins = max(0, min(arrivals, default=len(story.log)) - since)

    second = replayed(story.log[begins:], story.fresh())

    assert seen(second)[0] == seen(story.balancer)[0]
    ledger, expected = second.ledger, story.balancer.ledger
    for name in here:
        assert booked(ledger, name) == booked(expected, name)
    for instance in FLEET:
        assert ledger.running(instance.id) == expected.running(instance.id)


def booked(ledger, name):
    """What rests on facts about the call alone."""
    booking = ledger.booking(name)
    if booking is None:
        return None
    return booking.instance_id, booking.at, booking.generated, booking.first_token_at


@pytest.mark.parametrize("policy", POLICIES)
def test_a_log_that_is_read_twice_says_no_more_than_once(policy):
    log, _ = build.simulate(3, policy=policy)
    half = log[: len(log) // 2]

    once = replayed(half, build.balancer(policy=policy, placement="least-kv"))
    twice = replayed(half[-40:], replayed(half, build.balancer(policy=policy)))

    assert len(once.in_flight()) > 3
    assert seen(twice)[0] == seen(once)[0]


def test_what_was_decided_is_done_even_where_this_balancer_would_decide_otherwise():
    balancer = build.balancer(build.instance("a"), build.instance("b"))

    balancer.replay(Record(1, Arrived(build.request("r")), (Dispatch("r", "b"),)))
    balancer.replay(Record(2, Arrived(build.request("waits"))))

    assert [(r.id, where) for r, where in balancer.in_flight()] == [("r", "b"), ("waits", None)]
    assert balancer.ledger.running("a") == 0
    assert build.placed(balancer.handle(Tick(), 3)) == [("waits", "a")]


def test_the_order_in_which_another_went_through_the_models_is_taken_as_it_was():
    balancer = build.balancer()
    balancer.replay(Record(1, Arrived(build.request("older", model="m"))))
    balancer.replay(Record(2, Arrived(build.request("younger", at=1, model="n"))))
    balancer.replay(Record(3, Tick(), (Dispatch("younger", "a"), Dispatch("older", "a"))))

    assert [where for _, where in balancer.in_flight()] == ["a", "a"]


def test_a_request_that_was_sent_to_an_instance_not_known_here_is_booked_there():
    balancer = build.balancer()
    balancer.replay(Record(1, Arrived(build.request("r")), (Dispatch("r", "later"),)))
    balancer.handle(InstanceJoined(build.instance("later", seqs=1)), 2)
    assert balancer.ledger.running("later") == 1
    balancer.handle(Arrived(build.request("next")), 3)

    assert build.placed(balancer.handle(Finished("r"), 4)) == [("next", "later")]


@pytest.mark.parametrize("death", [InstanceLeft("a"), Tick()])
def test_what_another_let_out_of_quarantine_is_tried_nowhere_else_as_a_suspect(death):
    """A successor on a bus does not take what was said of instances then, but of now."""
    balancer = build.balancer(build.instance("a"), build.instance("b"), build.instance("c"))
    balancer.replay(Record(1, Arrived(build.request("r"), 7), (Dispatch("r", "a"),)))
    balancer.replay(Record(2, Bounced("r", "why", 7, dropped=True)))
    assert balancer.faults.is_aside("r")
    balancer.replay(Record(3, Tick(), (Dispatch("r", "b"),)))
    assert not balancer.faults.is_aside("r")

    commands = balancer.handle(death, 4) + balancer.handle(Tick(), 60 * SECOND)

    assert commands == []
    assert balancer.in_flight() == [(balancer.in_flight()[0][0], "b")]
    assert balancer.ledger.running("b") == 1
    assert balancer.waiting == 0


def test_a_request_that_was_given_up_is_forgotten():
    balancer = build.balancer()
    balancer.replay(Record(1, Arrived(build.request("r"))))
    balancer.replay(Record(2, InstanceLeft("a"), (Refuse("r", "m"),)))

    assert balancer.in_flight() == []
    assert balancer.estimates.positions._calls == {}


def test_what_is_said_of_requests_not_known_here_changes_nothing():
    balancer = build.balancer(build.instance("a", seqs=1))
    balancer.replay(Record(1, Finished("old"), (Dispatch("older", "a"), Refuse("oldest", "m"))))
    balancer.replay(Record(2, Tick(), (Dispatch("older", "a"),)))

    assert balancer.in_flight() == []
    assert build.placed(balancer.handle(Arrived(build.request("r")), 3)) == [("r", "a")]


def test_a_log_of_a_clock_that_goes_ahead_or_back_is_taken_as_it_is():
    balancer = build.balancer(build.instance("a", seqs=1))
    balancer.replay(Record(100, Arrived(build.request("r"))))
    balancer.replay(Record(50, Arrived(build.request("s"))))

    assert balancer.at == 100
    assert len(balancer.in_flight()) == 2
