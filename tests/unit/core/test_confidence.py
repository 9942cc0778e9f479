"""Bootstrap intervals: deterministic, and as sure as they say."""

from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kairos.core import Interval, difference_interval, mean_interval, ratio_interval

VALUES = st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=12)


@given(VALUES)
def test_the_mean_lies_between_bounds_that_lie_between_the_values(values):
    found = mean_interval(values)

    assert found == mean_interval(values)
    assert found.mean == pytest.approx(fmean(values), abs=1e-6)
    slack = 1e-9 * max(map(abs, values), default=0)
    assert min(values) - slack <= found.low <= found.high <= max(values) + slack


def test_what_differs_between_runs_drops_out_of_paired_differences():
    first = [10.0, 200.0, 3000.0]
    found = difference_interval(first, [value + 2 for value in first])

    assert found == Interval(-2.0, -2.0, -2.0)
    with pytest.raises(ValueError, match="zip"):
        difference_interval([1.0], [])


def test_there_is_no_ratio_of_too_few_or_to_nothing():
    assert ratio_interval([1.0], [2.0]) is None
    assert ratio_interval([1.0, 2.0], [0.0, 1.0]) is None
    assert ratio_interval([1.0, 2.0], [1.0, 2.0, 3.0]) is None
