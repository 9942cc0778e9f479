"""Which instance gets a request, or none yet."""

import numpy as np
import pytest

from kairos.core import (
    PLACEMENTS,
    SECOND,
    Arrived,
    Cancelled,
    Finished,
    FirstToken,
    InstanceLeft,
    InstanceStatus,
    Ledger,
    ProfilesLearnt,
    Progressed,
    exponential_distribution,
)
from kairos.core.dispatcher.available import AvailableInstances
from kairos.core.dispatcher.occupancy import of_request
from kairos.core.dispatcher.slots import TimeSlot
from kairos.core.dispatcher.survival_packing import SurvivalPacking
from kairos.core.scheduler import output_lengths
from tests.support.core import kernel, learnt
from tests.support.core.learnt import always
from tests.support.simulate import build

BY_SLOTS = ["time-slot", "kairos"]


def instances_chosen(balancer, count, **fields):
    chosen = []
    for n in range(count):
        [dispatch] = balancer.handle(Arrived(build.request(f"r{n}", **fields)), 0)
        chosen.append(dispatch.instance_id)
    return chosen


def arrive(balancer, name, at=0, **fields):
    return build.placed(balancer.handle(Arrived(build.request(name, at=at, **fields)), at))


class Placed:
    """A placement by itself, and a ledger whose calls are told here."""

    def __init__(self, placement, *instances, **known):
        self.lengths = build.Lengths(**known)
        self.ledger = Ledger(self.lengths)
        for each in instances:
            self.ledger.add_instance(each)
        self.placement = PLACEMENTS[placement](self.ledger)

    def book(self, name, where, *, at=0, told=None, **fields):
        self.ledger.book(build.request(name, **fields), where, at)
        if told is not None:
            self.ledger.record_progress({name: told}, at)

    def choose(self, *, at=0, **fields):
        request = build.request("asked", **fields)
        room = AvailableInstances(self.ledger.served.serving(None), self.ledger, self.placement, at)
        chosen = room.choose(request)
        return chosen.id if chosen else None


def test_round_robin_forgets_instances_that_left():
    balancer = build.balancer(*map(build.instance, "abc"), placement="round-robin")
    instances_chosen(balancer, 2)
    balancer.handle(InstanceLeft("c"), 0)

    assert instances_chosen(build.balancer(*map(build.instance, "ab")), 2) == ["a", "b"]
    [dispatch] = balancer.handle(Arrived(build.request("next")), 0)
    assert dispatch.instance_id == "a"


def test_least_kv_without_known_memory_takes_the_instance_with_the_fewest_tokens():
    balancer = build.balancer(build.instance("a"), build.instance("b"), placement="least-kv")
    balancer.handle(Arrived(build.request("long", prompt=500)), 0)

    assert instances_chosen(balancer, 3, prompt=10) == ["b", "b", "b"]


TOKEN_US = 20_000.0


@pytest.mark.parametrize("placement", BY_SLOTS)
def test_nothing_new_goes_to_an_instance_that_is_short_of_memory_until_that_has_eased(placement):
    balancer = build.balancer(
        build.instance("a", kv=10_000), build.instance("b", models=("n",)), placement=placement
    )
    arrive(balancer, "first")
    balancer.handle(InstanceStatus("a", preemptions=0), 1)
    balancer.handle(InstanceStatus("a", preemptions=1), 2)
    assert arrive(balancer, "waits", at=3) == []
    assert arrive(balancer, "elsewhere", at=3, model="n") == [("elsewhere", "b")]
    eased = balancer.handle(InstanceStatus("a", preemptions=1, kv_used=0.5), 4)
    assert build.placed(eased) == [("waits", "a")]


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_a_request_goes_only_to_instances_that_serve_its_model_and_can_hold_it(placement):
    balancer = build.balancer(
        build.instance("small", kv=50),
        build.instance("other", models=("n",), kv=10_000),
        build.instance("both", models=("m", "n"), kv=500),
        placement=placement,
    )
    assert arrive(balancer, "long", prompt=300, completion=100) == [("long", "both")]
    assert arrive(balancer, "n", model="n", prompt=9_000) == [("n", "other")]
    assert arrive(balancer, "too long now", prompt=400, completion=100) == []
    assert arrive(balancer, "short", prompt=20, completion=1) == [("short", "small")]


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_the_smallest_calls_of_all_are_placed(placement):
    balancer = build.balancer(build.instance("a", kv=1, seqs=2), placement=placement)
    assert arrive(balancer, "r", prompt=1, completion=0, completion_limit=1) == [("r", "a")]
    assert arrive(balancer, "s", prompt=1, completion=0, completion_limit=1) == []
    released = balancer.handle(Finished("r", 1, 1, 0), 0)  # at the same instant
    assert build.placed(released) == [("s", "a")]


def test_ours_stays_where_the_history_is_while_that_pays():
    history = {"prompt": 3000, "prefix": tuple(range(20)), "prefix_units": 3000}
    warm = [build.instance(name, kv=50_000, seqs=99) for name in "ab"]
    placed = Placed("kairos", *warm, tokens={"x": exponential_distribution(20.0)})
    placed.book("r", "b", agent="x", **history)
    placed.ledger.release_booking("r", 0, Finished("r", 3000, 1))
    placed.book("busy", "b", prompt=100, agent="x")
    assert placed.choose(agent="x", **history) == "b"
    assert placed.choose(agent="x", prompt=3000) == "a"
    for n in range(60):
        placed.book(f"busy{n}", "b", prompt=100, agent="x")
        placed.ledger.record_first_token(f"busy{n}", 0)
    # Now its prompt, short as the rest of it is, would hold up too many others.
    assert placed.choose(agent="x", **{**history, "prompt": 3600, "prefix_units": 3600}) == "a"


def by_numpy(ledger):
    return SurvivalPacking(ledger, None)


@pytest.mark.parametrize("made", [TimeSlot, by_numpy, SurvivalPacking])
def test_what_is_reserved_is_what_the_request_will_hold_from_when_there_is_room(made):
    """1,000 tokens; a call of 600 ends after 2 s, as all calls do; one of 500 waits for that."""
    known = build.Lengths(
        tokens={"x": always(100), "short": always(5)},
        latency_us={"x": always(2 * SECOND), "short": always(0.1 * SECOND)},
    )
    ledger = Ledger(known)
    instance = build.instance("a", kv=1000, token_us=TOKEN_US)
    ledger.add_instance(instance)
    placement = made(ledger)
    ledger.book(build.request("running", prompt=600, agent="x"), "a", 0)
    ledger.record_first_token("running", 0)
    waits = build.request("waits", prompt=500, agent="x")
    assert placement.choose(waits, [instance], [], 0) is None
    placement.reserve(waits, [instance], 0)

    compiled = getattr(placement, "_compiled", None)
    where, room = placement._reserved if compiled is None else kernel.reserved(placement)
    assert where == ("a" if compiled is None else 0)
    begins = int(np.flatnonzero(room)[0])
    assert begins in (4, 5)  # slots of half a second
    assert 500 <= room[begins] < 800  # with what is kept free of it
    assert not room[:begins].any()
    short = build.request("ends before", prompt=100, agent="short")
    assert placement.choose(short, [instance], [], 0) is instance
    placement.forget_reservation()
    assert (placement._reserved if compiled is None else kernel.reserved(placement)) is None


@pytest.mark.parametrize("placement", BY_SLOTS)
def test_requests_behind_one_that_waits_go_if_they_are_done_before_it_could_begin(
    placement, monkeypatch
):
    monkeypatch.setattr(
        output_lengths, "_GUESSED", []
    )  # answers are as long as they are said to be
    fleet = [build.instance("a", kv=1000, seqs=9, token_us=TOKEN_US)]
    balancer = build.balancer(*fleet, placement=placement, passed_over=0)
    tokens = {"short": 5, "long": 100}
    balancer.handle(
        ProfilesLearnt(
            tuple(
                learnt.profile(
                    agent,
                    [SECOND],
                    tenant="default",
                    call_us=always(n * TOKEN_US),
                    completion_tokens=always(n),
                )
                for agent, n in tokens.items()
            )
        ),
        0,
    )
    fields = {"app": "app", "agent": "long"}
    arrive(balancer, "running", prompt=300, **fields)  # until 2 s
    assert arrive(balancer, "waits", prompt=700, **fields) == []
    assert arrive(balancer, "until 3 s", at=SECOND, prompt=250, **fields) == []
    fields["agent"] = "short"
    assert arrive(balancer, "until 1.1 s", at=SECOND, prompt=250, **fields) == [
        ("until 1.1 s", "a")
    ]
    released = balancer.handle(Finished("until 1.1 s", 250, 5, 0), SECOND + 1)
    assert released == []
    released = balancer.handle(Finished("running", 300, 100, 0), 2 * SECOND)
    assert build.placed(released) == [("waits", "a")]


HISTORY = {"prompt": 30_000, "prefix": tuple(range(54)), "prefix_units": 30_000}


class Warm:
    """Two instances of two sequences; a workflow's history of 30,000 tokens is on `a`, where it
    took 9 s to compute; two calls run there now, and none on `b`."""

    def __init__(self, **limits):
        fleet = [build.instance(name, kv=200_000, seqs=2) for name in "ab"]
        self.balancer = build.balancer(*fleet, placement="kairos", **limits)
        assert arrive(self.balancer, "before", **HISTORY) == [("before", "a")]
        self.balancer.handle(FirstToken("before"), 9 * SECOND)
        self.balancer.handle(Finished("before", 30_000, 10, 0), 10 * SECOND)
        for n in range(3):
            arrive(self.balancer, f"busy{n}", at=10 * SECOND, prompt=100)
        assert self.balancer.ledger.instance_of("busy1") == "b"
        self.balancer.handle(Finished("busy1", 100, 1, 0), 10 * SECOND)

    def asks(self, name, at_s, **fields):
        return arrive(self.balancer, name, at=at_s * SECOND, **{**HISTORY, **fields})


def test_ours_waits_briefly_for_a_warm_instance_that_is_busy():
    warm = Warm()
    assert warm.asks("again", 11) == []
    assert arrive(warm.balancer, "other", at=11 * SECOND, prompt=100) == [("other", "b")]
    ended = warm.balancer.handle(Finished("busy0", 100, 20, 0), 12 * SECOND)
    [dispatch] = ended
    assert (dispatch.request_id, dispatch.instance_id) == ("again", "a")
    assert dispatch.cached_tokens > 25_000


def test_ours_waits_for_a_warm_instance_no_longer_than_that_saves():
    """Whatever runs there may never end."""
    warm = Warm()
    assert warm.asks("again", 11) == []
    found = []
    for second in range(12, 40):
        progress = Progressed({"busy0": second, "busy2": second})
        found += warm.balancer.handle(progress, second * SECOND)
        if found:
            break
    assert build.placed(found) == [("again", "b")]
    assert 12 < second <= 22  # at most the 9 s


def test_of_those_who_waited_for_a_warm_instance_nothing_is_kept_for_ever(monkeypatch):
    monkeypatch.setattr("kairos.core.dispatcher.warm_waits._MAX_WAITS", 5)
    warm = Warm()
    for n in range(40):
        assert warm.asks(f"r{n}", 11) == []
        warm.balancer.handle(Cancelled(f"r{n}"), 11 * SECOND)
    assert len(warm.balancer._dispatching._placement._waits) <= 5
    assert warm.asks("again", 12) == []
    warm.balancer.handle(Finished("busy0"), 12 * SECOND)
    assert "again" not in warm.balancer._dispatching._placement._waits


@pytest.mark.parametrize("made", [TimeSlot, SurvivalPacking])
def test_what_was_refused_for_a_reservation_is_not_without_it(made):
    known = build.Lengths(tokens={"x": always(100)}, latency_us={"x": always(2 * SECOND)})
    ledger, instance = Ledger(known), build.instance("a", kv=1000, token_us=TOKEN_US)
    ledger.add_instance(instance)
    placement = made(ledger)
    ledger.book(build.request("running", prompt=300, agent="x"), "a", 0)
    ledger.record_first_token("running", 0)
    later = SECOND
    ledger.record_progress({"running": 50}, later)
    placement.reserve(build.request("waits", prompt=700, agent="x"), [instance], later)
    until_3_s = build.request("until 3 s", prompt=200, agent="x")
    assert placement.choose(until_3_s, [instance], [], later) is None
    placement.forget_reservation()
    assert placement.choose(until_3_s, [instance], [], later) is instance


def test_where_few_end_no_more_is_expected_than_if_nobody_did():
    slow = build.instance("a", kv=10**6, token_us=100_000.0, seqs=99)
    placed = Placed("kairos", slow, tokens={"x": exponential_distribution(3_000.0)})
    told = {"prompt": 100, "agent": "x", "completion_limit": 4_000}
    for n in range(10):
        placed.book(f"r{n}", "a", told=1, **told)
    asked = build.request("asks", **told)
    placement = SurvivalPacking(placed.ledger, None)

    [loads] = placement._loads(asked, [slow], np.array([100.0]), 0)

    alone = of_request(placed.ledger, asked, *map(np.array, ([100.0], [1e5], [0.0])))
    most = placement._occupancy.of([slow], 0)[2, 0] + alone[2, 0]
    assert (loads <= most * (1 + 1e-9)).all()
    assert (loads[2:6] > most[2:6] * 0.99).all()
    assert (loads[-3:] < most[-3:] / 2).all()
