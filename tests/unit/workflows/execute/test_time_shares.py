"""The shares of a processor's time that its calls have."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kairos.workflows import TimeShares

Calls = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 30), st.integers(0, 9)), max_size=12)


def shares_of(calls):
    """`calls`: when each begins, how long it is under way, and its items."""
    shares, begun, found = TimeShares(), {}, {}
    events = [(at, 1, n) for n, (at, _, _) in enumerate(calls)]
    events += [(at + lasts, 2, n) for n, (at, lasts, _) in enumerate(calls)]
    for at, what, n in sorted(events):
        if what == 1:
            begun[n] = shares.begin_call(calls[n][2], at)
        else:
            found[n] = shares.end_call(begun[n], at)
    return found


@given(Calls)
def test_shares_are_those_of_a_program_that_goes_through_every_instant(calls):
    naive = dict.fromkeys(range(len(calls)), 0.0)
    for at in range(100):
        under_way = [n for n, (begun, lasts, _) in enumerate(calls) if begun <= at < begun + lasts]
        items = sum(max(1, calls[n][2]) for n in under_way)
        for n in under_way:
            naive[n] += max(1, calls[n][2]) / items
    assert shares_of(calls) == pytest.approx(naive)


def test_a_call_alone_has_all_of_its_time_and_idle_time_is_nobodys():
    assert shares_of([(0, 7, 3), (20, 5, 1)]) == {0: 7, 1: 5}
