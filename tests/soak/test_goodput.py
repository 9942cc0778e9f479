"""What could have been served, and whose turn it is to be hurt."""

import random
from contextlib import ExitStack

import pytest

from tests.soak import verdict
from tests.soak.asks import Ask
from tests.soak.client import Outcome
from tests.soak.goodput import Goodput, goodput
from tests.soak.turns import Change, Turns

ONE = [Change(0.0, 1)]  # engine, well from the beginning to the end
MAX_WAIT_S = 4.0


def called(at_s, end="answered", seconds=1.0, kind="well", **more):
    ask = Ask(
        id=f"{at_s}", at_s=at_s, kind=kind, headers={}, body=b"", streamed=True,
        **({"patience_s": 20.0} | more),
    )  # fmt: skip
    return Outcome(ask, end, seconds, 0)


def seen(outcomes, changes=ONE, calls_per_s=1.0):
    return goodput(outcomes, changes, calls_per_s=calls_per_s, max_wait_s=MAX_WAIT_S)


def test_whoever_comes_one_by_one_can_be_served():
    assert seen([called(n) for n in range(10)]) == Goodput(10, 10)
    failed = called(3.5, "error")
    assert seen([called(0.0), failed, called(9.0)]) == Goodput(3, 2)


def test_those_that_would_wait_for_too_long_could_not_be_served():
    at_once = [called(n / 1000) for n in range(10)]
    assert seen(at_once) == Goodput(5, 10)  # after 0 to 4 s
    assert seen(at_once, [Change(0.0, 2)]) == Goodput(9, 10)
    hasty = [called(n / 1000, deadline_s=2.5) for n in range(10)]
    assert seen(hasty) == Goodput(2, 10)
    assert seen([called(n / 1000, patience_s=3.5) for n in range(10)]) == Goodput(3, 10)


def test_it_counts_who_was_well_while_a_call_ran():
    calls = [called(10.0), called(10.1), called(10.2, deadline_s=2.0)]
    at_half = [Change(0.0, 1), Change(10.5, 2)]
    # The first half of the first takes half a second, its second half a quarter.
    assert seen(calls, at_half) == Goodput(2, 3)
    assert seen(calls, [Change(0.0, 2)]) == Goodput(3, 3)
    none = [Change(0.0, 1), Change(10.0, 0), Change(20.0, 1)]
    assert seen([called(9.9), called(10.0), called(21.0)], none) == Goodput(2, 3)


def test_engines_that_never_serve_could_serve_nothing():
    assert seen([called(0.0), called(1.0)], calls_per_s=0.0) is None
    gone = [Change(0.0, 1), Change(0.5, 0)]
    assert seen([called(0.0), called(1.0)], gone) is None


def test_who_leaves_or_asks_for_nonsense_is_not_counted():
    assert seen([called(0.0), called(5.0, leaves=True), called(9.0, kind="broken")]).could == 1
    # But whoever leaves takes an engine's time.
    others = [called(n / 1000, leaves=True) for n in range(5)]
    assert seen([*others, called(1.0)]) == Goodput(1, 1)
    assert seen([*others, called(0.5)]) is None
    assert seen([called(0.0, kind="poisonous"), called(0.1)]).could == 1
    assert seen([]) is None


def test_an_answer_after_the_deadline_is_none():
    assert seen([called(0.0, seconds=3.0, deadline_s=2.9)]) == Goodput(1, 0)


def test_too_little_that_was_served_is_told():
    enough = round(1000 * verdict.LEAST_SERVED)
    assert list(verdict.of_goodput(Goodput(1000, enough))) == []
    assert list(verdict.of_goodput(None)) == []
    [complaint] = verdict.of_goodput(Goodput(1000, enough - 1))
    assert f"of 1000 calls that could have been served {enough - 1} were" in complaint


@pytest.mark.parametrize("engines", [2, 3])
def test_one_is_well_at_any_time(engines):
    dice, clock = random.Random(1), iter(range(10_000))
    turns = Turns(engines, lambda: float(next(clock)))
    drawn = set()
    for _ in range(200):
        with ExitStack() as hurt:
            for _ in range(dice.randint(1, 3)):
                drawn.add(number := turns.draw(dice))
                hurt.enter_context(turns.away(number))

    assert drawn == {*range(engines)}
    assert min(change.well for change in turns.changes) == 1
    assert turns.changes[-1].well == engines
    assert [each.at_s for each in turns.changes[1:]] == sorted(
        each.at_s for each in turns.changes[1:]
    )


def test_a_single_engine_has_no_other():
    turns = Turns(1, lambda: 1.0)
    with turns.away(turns.draw(random.Random(1))):
        assert turns.changes == [Change(0.0, 1), Change(1.0, 0)]
