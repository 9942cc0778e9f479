"""What could have been served, and whose turn it is to be hurt."""

from tests.soak import verdict
from tests.soak.client import made_up
from tests.soak.goodput import Goodput, goodput
from tests.soak.turns import Change

ONE = [Change(0.0, 1)]  # engine, well from the beginning to the end
MAX_WAIT_S = 4.0


def called(at_s, **given):
    return made_up(name=f"{at_s}", at_s=at_s, **{"seconds": 1.0, "patience_s": 20.0} | given)


def seen(outcomes, changes=ONE, calls_per_s=1.0):
    return goodput(outcomes, changes, calls_per_s=calls_per_s, max_wait_s=MAX_WAIT_S)


def test_those_that_would_wait_for_too_long_could_not_be_served():
    at_once = [called(n / 1000) for n in range(10)]
    assert seen(at_once) == Goodput(5, 10)  # after 0 to 4 s
    assert seen(at_once, [Change(0.0, 2)]) == Goodput(9, 10)
    hasty = [called(n / 1000, deadline_s=2.5) for n in range(10)]
    assert seen(hasty) == Goodput(2, 10)
    assert seen([called(n / 1000, patience_s=3.5) for n in range(10)]) == Goodput(3, 10)


def test_too_little_that_was_served_is_told():
    enough = round(1000 * verdict.LEAST_SERVED)
    assert list(verdict.of_goodput(Goodput(1000, enough))) == []
    assert list(verdict.of_goodput(None)) == []
    [complaint] = verdict.of_goodput(Goodput(1000, enough - 1))
    assert f"of 1000 calls that could have been served {enough - 1} were" in complaint
