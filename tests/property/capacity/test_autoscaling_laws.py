"""G11: whatever a pool does, its size keeps its bounds, never flaps, and follows what was seen."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from kairos.capacity.autoscaling import Autoscaler, ScalingRules
from kairos.core import Look
from tests.support.core.demand import OpenWork
from tests.support.examples import examples

EVERY_S = 15.0
WORK = st.lists(
    st.builds(
        OpenWork, st.integers(1, 50), st.integers(1, 200), st.floats(0.001, 1e5, allow_nan=False)
    ),
    max_size=5,
)
# By step: workflows that begin, what is open, calls that run, seats, and whether one is lost.
STEPS = st.lists(
    st.tuples(
        st.integers(0, 200), WORK, st.integers(0, 500), st.none() | st.floats(1, 300), st.booleans()
    ),
    max_size=120,
)
RULES = st.builds(
    lambda least, more, start_s, calm_s, utilisation: ScalingRules(
        least=least, most=least + more, start_s=start_s, calm_s=calm_s, utilisation=utilisation
    ),
    st.integers(1, 5),
    st.integers(0, 20),
    st.floats(0, 600),
    st.floats(0, 900),
    st.floats(0.05, 1.5),
)


def played(rules, steps, losses):
    """What is decided, each with its instant and how many there were; it is carried out at once."""
    scaler, there, begun = Autoscaler(rules), rules.least, 0
    found = []
    for number, (new, work, running, seats, is_lost) in enumerate(steps):
        begun += new
        there -= losses and is_lost and there > 0
        look = Look(
            at_s=number * EVERY_S, begun=begun, open_work=work, running=running, seats=seats
        )
        decision = scaler.decide(look, there)
        found.append((look.at_s, there, decision))
        there += decision.change
        assert rules.least <= there <= rules.most
    return found


@given(RULES, STEPS, st.integers(1, 300))
@examples(150)
def test_g11_seats_that_are_stated_decide_as_seats_that_were_seen(rules, steps, seats):
    stated = msgspec.structs.replace(rules, seats=float(seats))
    seen = [(*step[:3], float(seats), step[4]) for step in steps]
    assert played(stated, steps, losses=True) == played(rules, seen, losses=True)


@given(RULES, STEPS)
@examples(150)
def test_g11_it_never_flaps(rules, steps):
    moves = [(at_s, each.change) for at_s, _, each in played(rules, steps, losses=False)]
    moves = [move for move in moves if move[1]]
    for index, (at_s, change) in enumerate(moves):
        for later_s, later in moves[index + 1 :]:
            if later_s < at_s + rules.calm_s:
                assert (change > 0) == (later > 0), "started and drained within calm_s"


@given(RULES, STEPS)
@examples(100)
def test_bounds_hold_whatever_is_lost(rules, steps):
    for _, there, decision in played(rules, steps, losses=True):
        assert rules.least <= there + decision.change <= rules.most
        assert decision.why


@given(RULES, STEPS)
@examples(50)
def test_the_same_looks_bring_the_same_decisions(rules, steps):
    assert played(rules, steps, losses=True) == played(rules, steps, losses=True)


@given(RULES, STEPS, st.integers(2, 5))
@examples(100)
def test_more_load_never_needs_fewer_instances(rules, steps, times):
    """So many times the workflows, alike in all else."""
    steps = [step for step in steps if step[3] is not None] or [(1, [], 0, 10.0, False)]
    needs = []
    for factor in (1, times):
        scaler, begun = Autoscaler(rules), 0
        for number, (new, work, running, seats, _) in enumerate(steps):
            begun += new * factor
            more = [OpenWork(*(factor * value for value in each)) for each in work]
            look = Look(
                at_s=number * EVERY_S,
                begun=begun,
                open_work=more,
                running=running * factor,
                seats=seats,
            )
            scaler.decide(look, rules.least)
        needs.append(scaler.needed())
    # What a workflow brings is believed once three have begun, which more reach sooner.
    assert needs[1] >= needs[0] * (1 - 1e-9)
