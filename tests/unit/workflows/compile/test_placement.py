"""H3, H4: where a flow's operators run, where devices switch models."""

import itertools
import os
import random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.placement_problems import drawn_flow
from kairos.core import SetupError
from kairos.workflows.compile import placement_moves
from kairos.workflows.compile.device_work import (
    DeviceChoice,
    LoadTime,
    OperatorWork,
    schedule,
)
from kairos.workflows.compile.placement import place_operators
from kairos.workflows.compile.placement_baselines import (
    co_located,
    data_parallel,
    one_by_one,
    round_robin,
)
from kairos.workflows.compile.placement_moves import PlanMoves

LOADS = {
    "a": LoadTime(load_us=5),
    "b": LoadTime(load_us=8, wake_us=2),
    "c": LoadTime(load_us=1),
}


def work(name, model, us, needs=(), **more):
    return OperatorWork(name=name, model=model, run_us=(float(us),), needs=tuple(needs), **more)


def graph(seed, count=6, models="abc"):
    """Operators that need some of those before them."""
    dice = random.Random(seed)
    made = []
    for n in range(count):
        needs = [each.name for each in made if dice.random() < 0.3]
        us = dice.randint(1, 20)
        streams = {"last_us": 1.0} if seed % 2 else {}
        shared = {"context": dice.choice("xy"), "reused_us": us / 2} if seed % 3 else {}
        model = models[n] if n < 2 else dice.choice(models)
        made.append(work(f"o{n}", model, us, needs, **streams, **shared))
    return made


def brute_force(works, loads, devices):
    """The shortest of all orders and all devices; times by hand, apart from the search."""
    best = float("inf")
    for order in itertools.permutations(range(len(works))):
        at = {works[n].name: position for position, n in enumerate(order)}
        if any(at[need] > at[each.name] for each in works for need in each.needs):
            continue
        for places in itertools.product(range(devices), repeat=len(works)):
            if places[0]:
                break  # devices are alike: the first operator is on the first
            best = min(best, by_hand([works[n] for n in order], places, loads, devices))
    return best


def by_hand(order, places, loads, devices):
    free, resident, slept, context = [0.0] * devices, {}, set(), {}
    first, end = {}, {}
    for each, device in zip(order, places, strict=True):
        run = each.run_us[0]
        if each.context and context.get(device) == (each.model, each.context):
            run = max(0, run - each.reused_us)
        last = run if each.last_us is None else min(run, each.last_us)
        load = loads[each.model]
        begins = free[device]
        if resident.get(device) != each.model:
            wakes = (device, each.model) in slept and load.wake_us is not None
            begins += load.wake_us if wakes else load.load_us
        begins = max([begins, *(first[name] for name in each.needs)])
        first[each.name] = begins + last
        end[each.name] = max([begins + run, *(end[name] + last for name in each.needs)])
        free[device], resident[device] = end[each.name], each.model
        slept.add((device, each.model))
        context[device] = (each.model, each.context)
    return max(end.values())


@pytest.mark.parametrize("seed", range(20))
def test_h3_a_placement_equals_brute_force_on_twenty_small_graphs(seed):
    works, devices = graph(seed, count=5 + seed % 2), 2
    found = place_operators(works, LOADS, devices, replicas=False)
    optimum = brute_force(works, LOADS, devices)
    assert found.makespan_us == pytest.approx(optimum)
    for baseline in (round_robin, co_located):
        assert baseline(works, LOADS, devices).makespan_us >= optimum - 1e-9


def test_h3_a_placement_on_three_devices_equals_brute_force():
    for seed in range(3):
        works = graph(seed, count=5)
        found = place_operators(works, LOADS, 3, replicas=False)
        assert found.makespan_us == pytest.approx(brute_force(works, LOADS, 3))


def test_h3_round_robin_co_located_and_data_parallel_stand_beside_it():
    # Two analysts of a model each, whose verdict needs both: as in the figure 5 of the paper.
    works = [
        work("first", "a", 10),
        work("second", "b", 10),
        work("third", "a", 10),
        work("decide", "b", 12, ("first", "second", "third")),
    ]
    assert place_operators(works, LOADS, 2, replicas=False).makespan_us == 5 + 20 + 12
    assert round_robin(works, LOADS, 2).makespan_us == 25 + 12
    assert co_located(works, LOADS, 2).makespan_us == 25 + 2 + 8 + 12 - 2
    # Each loads, as no operator is of the model before it: b sleeps, and wakes in 2.
    assert data_parallel(works, LOADS, 2).makespan_us == 5 + 10 + 8 + 10 + 5 + 10 + 2 + 12


def test_operators_of_a_model_are_put_together_where_a_load_is_dear():
    works = [work(f"o{n}", "ab"[n % 2], 4) for n in range(6)]
    found = place_operators(works, LOADS, 1)
    assert found.loads == 2
    assert [model for model, _ in found.models(0)] in (["a", "b"], ["b", "a"])
    assert round_robin(works, LOADS, 1).loads == 6


def test_h4_replicas_only_where_ready_operators_are_fewer_than_devices_and_heavy():
    def shared(us, count):
        works = [
            OperatorWork(
                name=f"o{n}", model="ab"[n % 2], calls=100, run_us=tuple(us / k for k in (1, 2, 3))
            )
            for n in range(count)
        ]
        return {each.of for each in place_operators(works, LOADS, 3).phases}

    assert shared(90.0, 2) != {1}  # two ready, three devices, and long
    assert shared(4.0, 2) == {1}  # shorter than a load
    assert shared(90.0, 3) == {1}  # enough that are ready


def test_h4_whenever_an_operator_is_shared_it_is_heavy():
    shared = 0
    for seed in range(40):
        works = [
            msgspec.structs.replace(
                each, calls=60, run_us=tuple(each.run_us[0] / k for k in (1, 2, 3))
            )
            for each in graph(seed, count=7)
        ]
        by_name = {each.name: each for each in works}
        phases = place_operators(works, LOADS, 3).phases
        if all(each.of == 3 for each in phases):
            continue  # data parallelism, which was quicker than what the search found
        for phase in phases:
            if phase.of > 1 and phase.part == 0:
                work = by_name[phase.operator]
                assert work.run_us[0] > LOADS[work.model].load_us
                shared += 1
    assert shared > 10


def test_h4_of_an_operator_that_is_shared_every_part_is_placed_once():
    works = [
        OperatorWork(name="long", model="a", calls=9, run_us=(90.0, 45.0, 30.0)),
        work("next", "b", 5, ("long",)),
    ]
    found = place_operators(works, LOADS, 3)
    parts = [(each.part, each.of) for each in found.phases if each.operator == "long"]
    assert parts == [(0, 3), (1, 3), (2, 3)]
    assert sorted(each.device for each in found.phases if each.operator == "long") == [0, 1, 2]


def test_work_that_cannot_be_placed_is_refused():
    with pytest.raises(SetupError, match="how long model 'other' takes to load"):
        place_operators([work("one", "other", 1)], LOADS, 2)
    with pytest.raises(SetupError, match="--devices 0"):
        place_operators([work("one", "a", 1)], LOADS, 0)


@pytest.mark.parametrize("seed", [2, 6, 13])
def test_no_simple_rule_is_better_on_large_flows(seed):
    works, loads, devices = drawn_flow(seed)
    found = place_operators(works, loads, devices)
    for rule in (round_robin, co_located, data_parallel, one_by_one):
        assert found.makespan_us <= rule(works, loads, devices).makespan_us + 1e-9
    assert {each.operator for each in found.phases} == {each.name for each in works}


@given(st.integers(0, 10**6), st.integers(1, 3), st.integers(1, 4), st.booleans())
def test_moves_reckon_what_a_schedule_takes_and_keep_what_is_needed(seed, count, devices, replicas):
    works = graph(seed, count=3 * count)
    choices = [DeviceChoice(each.name, (n % devices,)) for n, each in enumerate(works)]
    moves = PlanMoves(works, LOADS, devices, replicas=replicas)
    before = schedule(works, LOADS, devices, choices)
    assert moves.cost(choices)[0] == pytest.approx(before.makespan_us)

    plan = moves.improve([choices], 20_000)
    after = schedule(works, LOADS, devices, plan)  # a need that comes later breaks it
    assert after.makespan_us == pytest.approx(moves.cost(plan)[0])
    assert after.makespan_us <= before.makespan_us + 1e-9
    assert sorted(each.operator for each in plan) == sorted(each.name for each in works)


def walks(seed):
    """A flow, a plan of it, and ways to walk from there."""
    if seed % 2:
        works, loads, devices = drawn_flow(seed)
    else:
        works, loads, devices = graph(seed, count=3 + seed % 7), LOADS, 1 + seed % 5
    dice = random.Random(seed)
    rule = dice.choice((round_robin, data_parallel, one_by_one))
    histories, steps = (dice.choice((1, 7, 100)), 20), dice.choice((500, 4_000, 10_000))
    return works, loads, devices, rule(works, loads, devices).choices, histories, steps


def same_walk(seed):
    works, loads, devices, plan, histories, steps = walks(seed)
    found = []
    for native in (True, False):
        moves = PlanMoves(works, loads, devices, replicas=seed % 3 > 0, native=native)
        assert moves.is_native == native
        found.append(moves.improve([plan], steps, histories))
    assert found[0] == found[1]


@pytest.fixture
def compiled():
    """The compiled walk. In CI it must be there."""
    if not PlanMoves([], {}, 1).is_native:
        assert not os.environ.get("CI"), "placement_moves.c is not compiled, and here it must be"
        pytest.skip("placement_moves.c is not compiled: `python scripts/compile_native.py`")


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("seed", range(40))
def test_c_and_python_walk_to_the_same_plan(seed):
    same_walk(seed)


@pytest.mark.long
@pytest.mark.usefixtures("compiled")
def test_c_and_python_walk_to_the_same_plan_from_a_thousand_plans():
    for seed in range(1_000, 2_000):
        same_walk(seed)


@pytest.mark.parametrize("seed", [2, 6, 13, 70])
def test_python_alone_places_no_worse_than_simple_rules(seed, monkeypatch):
    works, loads, devices = drawn_flow(seed)
    monkeypatch.setattr(placement_moves, "_LIBRARY", None)
    found = place_operators(works, loads, devices)
    for rule in (round_robin, co_located, data_parallel, one_by_one):
        assert found.makespan_us <= rule(works, loads, devices).makespan_us + 1e-9


def test_more_models_than_a_word_has_bits_are_placed():
    loads = {f"m{n}": LoadTime(load_us=3.0) for n in range(70)}
    works = [work(f"o{n}", f"m{n % 70}", 4) for n in range(80)]
    found = place_operators(works, loads, 4)
    assert {each.operator for each in found.phases} == {each.name for each in works}
    assert not PlanMoves(works, loads, 4).is_native
