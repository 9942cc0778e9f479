"""Which instance gets a request, or none yet."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kairos.dispatcher.available import AvailableInstances
from kairos.dispatcher.demand import SLOT_US, SLOTS, expected, exponential
from kairos.dispatcher.ledger import Ledger
from kairos.dispatcher.occupancy import by_modes
from kairos.dispatcher.placements import PLACEMENTS, THRESHOLD
from kairos.dispatcher.slots import TimeSlot
from kairos.dispatcher.survival_packing import SurvivalPacking
from kairos.events import (
    Arrived,
    Cancelled,
    Finished,
    FirstToken,
    InstanceLeft,
    InstanceStatus,
    ProfilesLearnt,
    Progressed,
)
from kairos.learnt import QUANTILES, Distribution
from kairos.model import SECOND
from kairos.scheduler import output_lengths
from tests.support import build, kernel, learnt

BY_SLOTS = ["time-slot", "kairos"]


def always(value):
    return Distribution(float(value), (float(value),) * QUANTILES)


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
            self.ledger.join(each)
        self.placement = PLACEMENTS[placement](self.ledger)

    def book(self, name, where, *, at=0, told=None, **fields):
        self.ledger.book(build.request(name, **fields), where, at)
        if told is not None:
            self.ledger.progressed({name: told}, at)

    def choose(self, *, at=0, **fields):
        request = build.request("asked", **fields)
        room = AvailableInstances(self.ledger.served.serving(None), self.ledger, self.placement, at)
        chosen = room.choose(request)
        return chosen.id if chosen else None


def test_round_robin_takes_turns():
    balancer = build.balancer(*map(build.instance, "abc"), placement="round-robin")

    assert instances_chosen(balancer, 7) == ["a", "b", "c", "a", "b", "c", "a"]


def test_round_robin_skips_an_instance_without_room():
    balancer = build.balancer(
        build.instance("a"), build.instance("b", seqs=1), placement="round-robin"
    )

    assert instances_chosen(balancer, 4) == ["a", "b", "a", "a"]


def test_round_robin_forgets_instances_that_left():
    balancer = build.balancer(*map(build.instance, "abc"), placement="round-robin")
    instances_chosen(balancer, 2)
    balancer.handle(InstanceLeft("c"), 0)

    assert instances_chosen(build.balancer(*map(build.instance, "ab")), 2) == ["a", "b"]
    [dispatch] = balancer.handle(Arrived(build.request("next")), 0)
    assert dispatch.instance_id == "a"


def test_round_robin_admits_what_fits_beside_what_is_held_now_and_no_more():
    placed = Placed("round-robin", build.instance("a", kv=100))
    placed.book("r", "a", prompt=40, completion=999, told=20)
    assert placed.choose(prompt=40, completion=999) == "a"
    assert placed.choose(prompt=41) is None
    assert Placed("round-robin", build.instance("a", kv=100)).choose(prompt=100) == "a"


def test_what_a_prompt_shares_with_calls_in_flight_there_needs_no_room():
    alike = {"prefix": (1,), "prefix_units": 80}
    for placement in PLACEMENTS:
        if placement == "time-slot":  # the paper knows nothing of prefixes
            continue
        placed = Placed(placement, build.instance("a", kv=250))
        placed.book("r", "a", prompt=160, **alike)
        assert placed.choose(prompt=160, **alike, completion=1) == "a", placement
        assert placed.choose(prompt=160, completion=1) is None, placement


def test_least_kv_takes_the_smallest_share_in_use():
    balancer = build.balancer(
        build.instance("small", kv=100, seqs=9),
        build.instance("large", kv=400, seqs=9),
        placement="least-kv",
    )

    # Shares before each choice: 0/0, .2/0, .2/.05, .2/.1, .2/.15, .2/.2
    chosen = instances_chosen(balancer, 6, prompt=20)
    assert chosen == ["small", "large", "large", "large", "large", "small"]


def test_least_kv_goes_by_fewer_calls_where_shares_are_alike():
    placed = Placed("least-kv", build.instance("a", kv=100), build.instance("b", kv=100))
    for name in ("one", "two"):
        placed.book(name, "a", prompt=10)
    placed.book("large", "b", prompt=20)
    assert placed.choose() == "b"


def test_least_kv_fills_no_instance_beyond_its_threshold_but_with_one_call():
    assert THRESHOLD == 0.95
    placed = Placed("least-kv", build.instance("a", kv=100))
    assert placed.choose(prompt=100) == "a"
    placed.book("r", "a", prompt=50)
    assert placed.choose(prompt=45) == "a"
    assert placed.choose(prompt=46) is None


def test_least_kv_without_known_memory_takes_the_instance_with_the_fewest_tokens():
    balancer = build.balancer(build.instance("a"), build.instance("b"), placement="least-kv")
    balancer.handle(Arrived(build.request("long", prompt=500)), 0)

    assert instances_chosen(balancer, 3, prompt=10) == ["b", "b", "b"]


def test_least_kv_sees_what_was_released():
    balancer = build.balancer(build.instance("a"), build.instance("b"), placement="least-kv")
    assert instances_chosen(balancer, 2) == ["a", "b"]
    balancer.handle(Finished("r1"), 1)

    [dispatch] = balancer.handle(Arrived(build.request("next", at=1)), 1)
    assert dispatch.instance_id == "b"


CALLS = st.lists(
    st.tuples(
        st.sampled_from(["a", "b", "c"]),
        st.integers(1, 400),  # prompt
        st.integers(0, 8),  # since it began, s
        st.sampled_from(["short", "long", "unknown"]),
    ),
    max_size=12,
)
LATENCIES = {"short": always(1.3 * SECOND), "long": always(9 * SECOND)}
TOKEN_US = 20_000.0


@given(CALLS, st.integers(1, 400), st.sampled_from(["short", "long", "unknown"]))
def test_the_papers_placement_never_expects_more_than_an_instance_holds_and_takes_the_lowest_peak(
    calls, prompt, agent
):
    fleet = [
        build.instance(name, seqs=99, kv=kv, token_us=TOKEN_US)
        for name, kv in (("a", 500), ("b", 1000), ("c", 1500))
    ]
    placed, now = Placed("time-slot", *fleet, latency_us=LATENCIES), 8 * SECOND
    for n, (where, tokens, since_s, whose) in enumerate(calls):
        at = now - since_s * SECOND
        placed.book(f"r{n}", where, at=at, prompt=tokens, completion=50, agent=whose)

    def lasts_us(whose):
        return LATENCIES[whose].mean if whose in LATENCIES else 50 * 20_000

    def peak(instance):
        """By equations 1 and 3 of the paper, of each call and slot by itself."""
        slots = [0.0] * SLOTS
        here = [(p, s * SECOND, lasts_us(w)) for i, p, s, w in calls if i == instance.id]
        for tokens, age_us, last_us in [*here, (prompt, 0, lasts_us(agent))]:
            for k in range(SLOTS):
                until_us = age_us + k * SLOT_US
                if until_us <= last_us:
                    slots[k] += tokens + until_us / TOKEN_US
        return max(slots)

    idle = {each.id for each in fleet} - {call[0] for call in calls}
    shares = {
        each.id: peak(each) / each.kv_tokens
        for each in fleet
        if prompt <= each.kv_tokens and (each.id in idle or peak(each) <= each.kv_tokens)
    }
    chosen = placed.choose(at=now, prompt=prompt, completion=50, agent=agent)
    assert (chosen is None) == (not shares)
    if shares:
        assert shares[chosen] == pytest.approx(min(shares.values()))


def test_the_papers_placement_is_blind_to_calls_that_outlive_the_mode_and_ours_is_not():
    known = {"tokens": {"x": exponential(50.0)}, "latency_us": {"x": always(SECOND)}}
    for name, sees in (("time-slot", False), ("kairos", True)):
        placed = Placed(name, build.instance("a", kv=1000, token_us=TOKEN_US), **known)
        placed.book("overdue", "a", prompt=900, agent="x")
        late = 60 * SECOND
        placed.ledger.progressed({"overdue": 90}, late)
        fits = placed.choose(at=late, prompt=200, agent="x") == "a"
        assert fits == (not sees), name


@pytest.mark.parametrize("placement", BY_SLOTS)
def test_what_is_known_to_be_in_use_beside_bookings_is_not_there_to_be_used(placement):
    placed = Placed(placement, build.instance("a", kv=1000))
    placed.book("r", "a", prompt=100, completion=1)
    assert placed.choose(prompt=500, completion=1) == "a"
    for n in range(9):
        placed.ledger.status(InstanceStatus("a", kv_used=0.8), n)
    assert placed.choose(prompt=500, completion=1) is None


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
def test_one_of_which_no_limit_is_known_takes_all_for_which_it_has_sequences(placement):
    balancer = build.balancer(build.instance("a", seqs=3), placement=placement)
    assert [arrive(balancer, f"r{n}", prompt=10**6) for n in range(4)] == [
        [("r0", "a")],
        [("r1", "a")],
        [("r2", "a")],
        [],
    ]


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
    placed = Placed("kairos", *warm, tokens={"x": exponential(20.0)})
    placed.book("r", "b", agent="x", **history)
    placed.ledger.release("r", 0, Finished("r", 3000, 1))
    placed.book("busy", "b", prompt=100, agent="x")
    assert placed.choose(agent="x", **history) == "b"
    assert placed.choose(agent="x", prompt=3000) == "a"
    for n in range(60):
        placed.book(f"busy{n}", "b", prompt=100, agent="x")
        placed.ledger.first_token(f"busy{n}", 0)
    # Now its prompt, short as the rest of it is, would hold up too many others.
    assert placed.choose(agent="x", **{**history, "prompt": 3600, "prefix_units": 3600}) == "a"


def test_ours_takes_the_lower_peak_where_costs_are_alike():
    placed = Placed("kairos", *(build.instance(name, kv=10_000, seqs=99) for name in "ab"))
    placed.book("large", "a", prompt=5000, told=1)  # which is computed
    placed.book("small", "b", prompt=10, told=1)
    assert placed.choose() == "b"


def test_ours_spreads_prompts_that_are_to_be_computed_where_costs_are_alike():
    placed = Placed("kairos", *(build.instance(name, kv=100_000, seqs=99) for name in "ab"))
    placed.book("large", "b", prompt=5000, told=1)
    placed.book("new", "a", prompt=1500)
    assert placed.choose(prompt=100) == "b"
    placed.ledger.first_token("new", 0)
    assert placed.choose(prompt=100) == "a"
    placed.book("newer", "a", prompt=1500, at=SECOND)
    assert placed.choose(prompt=100, at=SECOND) == "b"
    # Nothing is told of it, but by now it must have been computed.
    assert placed.choose(prompt=100, at=4 * SECOND) == "a"


def test_what_a_prompt_takes_of_a_step_is_weighed_by_what_a_step_takes():
    few, many = (
        build.instance(name, kv=100_000, seqs=99, max_num_batched_tokens=budget)
        for name, budget in (("a", 2000), ("b", 8000))
    )
    placed = Placed("kairos", few, many)
    placed.book("one", "a", prompt=500)
    placed.book("other", "b", prompt=1500)
    assert placed.choose(prompt=100) == "b"


def test_ours_balances_memory_where_only_the_load_differs():
    placed = Placed("kairos", *(build.instance(name, kv=10_000, seqs=99) for name in "ab"))
    placed.book("large", "a", prompt=5000, told=1)
    for n in range(3):
        placed.book(f"small{n}", "b", prompt=10, told=1)
    assert placed.choose(prompt=100) == "b"  # though it holds up two more calls there


def test_ours_prefers_much_the_quicker_instance_to_the_emptier_one():
    slow = build.instance("a", kv=10_000, seqs=99, token_us=3 * TOKEN_US)
    placed = Placed("kairos", slow, build.instance("b", kv=10_000, seqs=99, token_us=TOKEN_US))
    placed.book("large", "b", prompt=5000)
    assert placed.choose() == "b"


def test_shorter_slots_see_what_longer_ones_miss():
    """Two calls of 2.9 s, which together hold 101 tokens, and 100 more each second."""
    known = build.Lengths(tokens={}, latency_us={"x": always(2.9 * SECOND)})

    def fits(slot_s):
        ledger = Ledger(known)
        instance = build.instance("a", kv=340, token_us=TOKEN_US)
        ledger.join(instance)
        ledger.book(build.request("first", prompt=1, agent="x"), "a", 0)
        placement = TimeSlot(ledger, slot_us=slot_s * SECOND)
        return placement.choose(build.request("r", prompt=100, agent="x"), [instance], [], 0)

    assert fits(1.0) is not None  # 301 after 2 s, and nothing after 3
    assert fits(0.5) is None  # 351 after 2.5 s


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
    ledger.join(instance)
    placement = made(ledger)
    ledger.book(build.request("running", prompt=600, agent="x"), "a", 0)
    ledger.first_token("running", 0)
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


def test_headroom_refuses_nothing_that_would_fit():
    """It only spares the work of looking closer."""
    for name, make in PLACEMENTS.items():
        placed = Placed(name, *(build.instance(i, kv=1000, seqs=9) for i in "ab"))
        placed.book("r", "a", prompt=600, completion=1)
        placed.book("s", "b", prompt=300, completion=1)
        instances = placed.ledger.served.serving(None)
        headroom = placed.placement.headroom(instances, 0)
        for prompt in (1, 300, 500, 650, 700, 900):
            request = build.request("asked", prompt=prompt, completion=1)
            chosen = placed.placement.choose(request, instances, [], 0)
            if name != "kairos":  # of which it is a rule of its own: a prompt must fit now
                assert chosen is None or prompt <= headroom, (name, prompt)
        assert make(placed.ledger).headroom(instances, 0) == headroom


def test_the_papers_need_by_hand_is_what_is_asked_for():
    made = Ledger(build.Lengths(latency_us={"x": always(2 * SECOND)}))
    instance = build.instance("a", kv=1000, token_us=TOKEN_US)
    made.join(instance)
    made.book(build.request("r", prompt=100, agent="x"), "a", 0)
    alone = expected(np.array([100.0]), np.zeros(1), np.array([2.0 * SECOND]), TOKEN_US)
    assert (by_modes(made, instance, 0)[0] == alone).all()
    assert alone[:6].tolist() == [100, 125, 150, 175, 200, 0]


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
    monkeypatch.setattr("kairos.dispatcher.warm_waits._MAX_WAITS", 5)
    warm = Warm()
    for n in range(40):
        assert warm.asks(f"r{n}", 11) == []
        warm.balancer.handle(Cancelled(f"r{n}"), 11 * SECOND)
    assert len(warm.balancer._dispatching._placement._waits) <= 5
    assert warm.asks("again", 12) == []
    warm.balancer.handle(Finished("busy0"), 12 * SECOND)
    assert "again" not in warm.balancer._dispatching._placement._waits


def test_an_instance_that_is_kept_for_one_is_not_given_to_another_that_had_been_looked_at():
    placed = Placed("round-robin", build.instance("large", kv=1000), build.instance("small", kv=99))
    placed.book("running", "large", prompt=500)
    placed.book("running too", "small", prompt=50)
    room = AvailableInstances(
        placed.ledger.served.serving(None), placed.ledger, placed.placement, 0
    )
    next_one = build.request("next", prompt=60)
    overdue = build.request("overdue", prompt=700)

    assert room.choose(next_one).id == "large"
    assert not room.fits(overdue)
    assert room.keep_for(overdue)
    assert room.choose(next_one) is None
    assert room.choose(build.request("short", prompt=20)).id == "small"


@pytest.mark.parametrize("placement", BY_SLOTS)
def test_what_was_refused_says_nothing_of_what_needs_less_nor_of_another_time(placement):
    placed = Placed(placement, build.instance("a", kv=2500), build.instance("b", kv=2500))
    for name in "ab":
        placed.book(f"running {name}", name, prompt=500, completion=100)
    instances = placed.ledger.served.serving(None)

    def choose(prompt):
        request = build.request("asked", prompt=prompt, completion=50)
        chosen = placed.placement.choose(request, instances, [], 0)
        return chosen.id if chosen else None

    assert choose(2300) is choose(2400) is None
    assert choose(50) in ("a", "b")
    placed.ledger.release("running b", 0)
    assert choose(2300) == "b"


@pytest.mark.parametrize("made", [TimeSlot, SurvivalPacking])
def test_what_was_refused_for_a_reservation_is_not_without_it(made):
    known = build.Lengths(tokens={"x": always(100)}, latency_us={"x": always(2 * SECOND)})
    ledger, instance = Ledger(known), build.instance("a", kv=1000, token_us=TOKEN_US)
    ledger.join(instance)
    placement = made(ledger)
    ledger.book(build.request("running", prompt=300, agent="x"), "a", 0)
    ledger.first_token("running", 0)
    later = SECOND
    ledger.progressed({"running": 50}, later)
    placement.reserve(build.request("waits", prompt=700, agent="x"), [instance], later)
    until_3_s = build.request("until 3 s", prompt=200, agent="x")
    assert placement.choose(until_3_s, [instance], [], later) is None
    placement.forget_reservation()
    assert placement.choose(until_3_s, [instance], [], later) is instance


@pytest.mark.parametrize(("lasts_s", "goes"), [(0.9, True), (1.4, False)])
def test_what_ends_in_the_slot_in_which_another_could_begin_stands_in_its_way(lasts_s, goes):
    """What runs ends after 1.1 s, and what waits begins then."""
    known = build.Lengths(
        latency_us={"runs": always(1.1 * SECOND), "asks": always(lasts_s * SECOND)}
    )
    ledger, instance = Ledger(known), build.instance("a", kv=1000, token_us=TOKEN_US)
    ledger.join(instance)
    placement = TimeSlot(ledger)
    ledger.book(build.request("runs", prompt=600, agent="runs"), "a", 0)
    waits = build.request("waits", prompt=800, agent="runs")
    assert placement.choose(waits, [instance], [], 0) is None
    placement.reserve(waits, [instance], 0)
    asks = build.request("asks", prompt=200, agent="asks")
    assert (placement.choose(asks, [instance], [], 0) is instance) == goes


def test_where_few_end_no_more_is_expected_than_if_nobody_did():
    known = {"tokens": {"x": exponential(3_000.0)}}
    told = {"prompt": 100, "agent": "x", "completion_limit": 4_000}

    def chosen(kv):
        slow = build.instance("a", kv=kv, token_us=100_000.0, seqs=99)
        placed = Placed("kairos", slow, **known)
        for n in range(10):
            placed.book(f"r{n}", "a", told=1, **told)
        return placed.choose(**told)

    most = 10 * 101 + 100 + 11 * (SLOTS - 1) * SLOT_US / 100_000
    assert chosen(int(most) + 10) == "a"
    assert chosen(int(most) - 500) is None
