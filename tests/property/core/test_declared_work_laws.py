"""What is left of a workflow by its declared plan is what is left in its graph."""

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kairos.core import (
    SECOND,
    InvalidRequest,
    PlanDeclared,
    PlannedOperator,
    PlannedWork,
    ProfilesLearnt,
    WorkEstimates,
)
from kairos.core.scheduler.declared_work import DeclaredWork
from tests.support.core import learnt
from tests.support.examples import examples
from tests.support.simulate import build


@st.composite
def graphs(draw):
    """Up to eight operators, each after some of those before it."""
    count = draw(st.integers(1, 8))
    return [
        tuple(sorted(draw(st.sets(st.integers(0, place - 1))))) if place else ()
        for place in range(count)
    ]


def plan_of(follows, **fields):
    return PlannedWork(
        tuple(PlannedOperator(f"a{n}", each, **fields) for n, each in enumerate(follows))
    )


def profiles(seconds):
    return tuple(
        learnt.profile(
            f"a{n}",
            [SECOND],
            app="app",
            tenant="default",
            call_us=learnt.distribution([each * SECOND]),
        )
        for n, each in enumerate(seconds)
    )


def paths_from(follows, place):
    """Every path of what follows the operator, to its end."""
    after = [n for n, each in enumerate(follows) if place in each]
    yield ()
    for each in after:
        for rest in paths_from(follows, each):
            yield (each, *rest)


def reached_by(follows, place):
    """What the operator follows, at once or not: by every subset of operators as a chain."""
    found = set()
    for length in range(1, place + 1):
        for chain in combinations(range(place), length):
            steps = [*chain, place]
            if all(steps[n] in follows[steps[n + 1]] for n in range(length)):
                found.add(chain[0])
    return found


@given(graphs(), st.data())
@examples(150)
def test_declared_remaining_work_equals_brute_force_over_random_graphs(follows, data):
    """A workflow is played in an order that the graph allows, several calls at a time."""
    seconds = data.draw(st.lists(st.integers(1, 9), min_size=8, max_size=8))[: len(follows)]
    estimates = WorkEstimates()
    estimates.declare(PlanDeclared("default", "app", plan_of(follows)))
    estimates.learn(ProfilesLearnt(profiles(seconds)))
    waiting, running, ended, at = set(range(len(follows))), {}, set(), 0
    while waiting or running:
        at += 1
        ready = sorted(n for n in waiting if ended.issuperset(follows[n]))
        if ready and (not running or data.draw(st.booleans())):
            place = data.draw(st.sampled_from(ready))
            waiting.remove(place)
            running[place] = build.request(
                f"r{place}", at=at, workflow_id="w", app="app", agent=f"a{place}"
            )
            estimates.add_call(running[place], at)
        else:
            place = data.draw(st.sampled_from(sorted(running)))
            estimates.remove_call(running.pop(place).id, at, 10)
            ended.add(place)
        left = sum(seconds[n] for n in waiting) + sum(seconds[n] for n in running)
        for place, request in running.items():
            assert estimates.left_us(request) == pytest.approx(left * SECOND)
            longest = max(sum(seconds[n] for n in path) for path in paths_from(follows, place))
            own = seconds[place]
            assert estimates.remaining_us(request) == pytest.approx((own + longest) * SECOND)


@given(graphs(), st.data())
@examples(150)
def test_an_operator_is_over_once_a_call_of_what_follows_it_has_come(follows, data):
    """Whether it was called or not: so a branch that was not taken is no work."""
    work = DeclaredWork(PlanDeclared("default", "app", plan_of(follows, calls=2.0)))
    seconds = [n + 1 for n in range(len(follows))]
    work.price(0, {each.key: each for each in profiles(seconds)})
    visits = {
        f"a{n}": data.draw(st.integers(1, 3))
        for n in data.draw(st.sets(st.integers(0, len(follows) - 1), min_size=1))
    }

    over = set().union(*(reached_by(follows, int(agent[1:])) for agent in visits))
    left = sum(
        max(0, 2 - visits.get(f"a{n}", 0)) * seconds[n]
        for n in range(len(follows))
        if n not in over
    )
    assert work.open_us(visits) == pytest.approx(left * SECOND)


@given(graphs(), st.data())
def test_a_plan_that_follows_itself_or_what_comes_later_is_refused(follows, data):
    place = data.draw(st.integers(0, len(follows) - 1))
    wrong = data.draw(st.integers(place, len(follows)) | st.integers(-3, -1))
    follows[place] = (*follows[place], wrong)
    estimates = WorkEstimates()
    with pytest.raises(InvalidRequest, match=f"a{place}"):
        estimates.declare(PlanDeclared("default", "app", plan_of(follows)))
