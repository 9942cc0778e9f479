"""A call's place inside an engine: less work left goes first, on one scale for ever."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from kairos.core import SECOND
from kairos.core.learnt import MAX_REMAINING_US
from kairos.core.scheduler.priority import LOWEST, priority_of

WORK_US = st.floats(0, MAX_REMAINING_US * 1000)


@given(WORK_US, WORK_US, st.sampled_from(["first", "backfill"]))
def test_less_work_never_stands_behind_more(one, other, reason):
    first, second = (priority_of(us, reason) for us in sorted([one, other]))
    assert 1 <= first <= second <= LOWEST
    assert isinstance(first, int)


@given(WORK_US, WORK_US)
def test_who_is_overdue_goes_before_all_who_are_not(overdue, other):
    assert priority_of(overdue, "overdue") < priority_of(other, "first")


def test_work_that_differs_by_a_fiftieth_is_told_apart_from_a_tenth_of_a_second_to_a_day():
    us = SECOND / 10
    while us < MAX_REMAINING_US:
        assert priority_of(us, "first") < priority_of(us * 1.02, "first")
        us *= 1.02


def test_the_scale_does_not_move():
    """Calls of now stand beside those that were sent by an older version."""
    seconds = (0, 0.1, 0.2, 1, 10, 60, 3600, 86_400, 10**9)
    found = [priority_of(each * SECOND, "first") for each in seconds]
    assert found == [1, 1, 41, 133, 266, 370, 606, 789, LOWEST]
    assert all(a <= b for a, b in pairwise(found))
