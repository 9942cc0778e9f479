"""Bootstrap intervals: deterministic, and as sure as they say."""

from statistics import fmean

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kairos.confidence import Interval, interval, paired, ratio

VALUES = st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=12)


@given(VALUES, st.integers(0, 2**31))
def test_the_mean_lies_between_bounds_that_lie_between_the_values(values, seed):
    found = interval(values, seed)

    assert found == interval(values, seed)
    assert found.mean == pytest.approx(fmean(values), abs=1e-6)
    slack = 1e-9 * max(map(abs, values), default=0)
    assert min(values) - slack <= found.low <= found.high <= max(values) + slack


def test_equal_values_leave_no_doubt_and_of_fewer_than_two_nothing_follows():
    assert interval([2.0] * 9) == Interval(2.0, 2.0, 2.0)
    assert interval([3.0]) is None
    assert interval([]) is None


def test_an_interval_is_that_of_the_drawn_means():
    """Of 0 and 1, drawn twice: means 0, 0.5 and 1 with odds 1 : 2 : 1."""
    assert interval([0.0, 1.0]) == Interval(0.5, 0.0, 1.0)
    # Of nine 0s and a 1 the mean is binomial: 95 % of the draws have none to three of the 1.
    found = interval([0.0] * 9 + [1.0])
    assert (found.low, found.high) == (0.0, pytest.approx(0.3))


def test_of_many_values_it_is_1_96_standard_errors_wide_on_both_sides():
    values = np.random.default_rng(2).normal(50, 8, size=400)
    error = values.std() / 20

    found = interval(values.tolist())

    assert found.mean - found.low == pytest.approx(1.96 * error, rel=0.05)
    assert found.high - found.mean == pytest.approx(1.96 * error, rel=0.05)


def test_the_true_mean_is_inside_nearly_as_often_as_it_is_said():
    dice = np.random.default_rng(1)
    samples = [dice.normal(10, 3, size=20).tolist() for _ in range(200)]
    inside = [found.low <= 10 <= found.high for found in map(interval, samples)]

    assert 0.88 < fmean(inside) < 0.98


def test_what_differs_between_runs_drops_out_of_paired_differences():
    first = [10.0, 200.0, 3000.0]
    found = paired(first, [value + 2 for value in first])

    assert found == Interval(-2.0, -2.0, -2.0)
    with pytest.raises(ValueError, match="zip"):
        paired([1.0], [])


def test_a_ratio_of_means_draws_pairs_together():
    found = ratio([1.0, 2.0, 3.0, 4.0], [2.0, 4.0, 6.0, 8.0])
    assert (found.mean, found.low, found.high) == (0.5, 0.5, 0.5)
    found = ratio([1.0, 9.0], [5.0, 5.0])
    assert (found.mean, found.low, found.high) == (1.0, 0.2, 1.8)


def test_there_is_no_ratio_of_too_few_or_to_nothing():
    assert ratio([1.0], [2.0]) is None
    assert ratio([1.0, 2.0], [0.0, 1.0]) is None
    assert ratio([1.0, 2.0], [1.0, 2.0, 3.0]) is None
