"""What one caller may use of what all share."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kairos.core import LONE_TENANT_SHARE, is_within_share


class Shared:
    """A bound, and callers that ask for one thing after the other."""

    def __init__(self, limit, callers, alone=LONE_TENANT_SHARE):
        self.limit, self.alone, self.used = limit, alone, [0] * callers

    def ask(self, caller):
        free = self.limit - sum(self.used) - 1
        granted = is_within_share(self.used[caller] + 1, free, self.alone)
        self.used[caller] += granted
        return granted


@pytest.mark.parametrize(("alone", "gets"), [(1, 1_000), (LONE_TENANT_SHARE, 900), (0.5, 500)])
def test_one_that_is_alone_gets_nearly_all(alone, gets):
    shared = Shared(1_000, 1, alone)
    assert [shared.ask(0) for _ in range(2_000)].count(True) == gets


def test_whoever_comes_later_finds_room_and_both_come_to_have_the_same():
    shared = Shared(1_000, 2)
    while shared.ask(0):
        pass
    assert shared.ask(1)
    for _ in range(5_000):  # the first's end one by one, and both ask for what is free
        shared.used[0 if shared.used[0] > shared.used[1] else 1] -= 1
        shared.ask(0)
        shared.ask(1)
    for used in shared.used:  # one less that is free is nine less that a caller may have
        assert used == pytest.approx(1_000 * 9 / 19, abs=9)


@given(
    limit=st.integers(20, 2_000),
    callers=st.integers(1, 20),
    data=st.data(),
)
def test_never_more_than_there_is_and_no_caller_more_than_its_share(limit, callers, data):
    shared = Shared(limit, callers)
    for caller in data.draw(st.lists(st.integers(0, callers - 1), max_size=300)):
        before = list(shared.used)
        if shared.ask(caller):
            free = limit - sum(shared.used)
            assert free >= 0
            assert 10 * shared.used[caller] <= 9 * (shared.used[caller] + free) + 1e-6
        else:
            assert shared.used == before
            assert shared.used[caller] + 1 > 9 * (limit - sum(before) - 1) - 1e-6
