"""Laws of what a window keeps and of how it tells of it."""

from collections import deque

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kairos.core import QUANTILES
from kairos.core.learnt import distribution, parts
from kairos.core.orchestrator.window import Ring, kolmogorov_smirnov
from tests.support.examples import examples

values = st.lists(st.integers(0, 10**10), min_size=1, max_size=200).map(np.array)
few = examples(100)


@few
@given(values=values, count=st.integers(1, 100))
def test_parts_ascend_within_the_sample_and_have_its_mean(values, count):
    found = parts(values, count)

    assert len(found) == count
    assert found.mean() == pytest.approx(values.mean())
    assert (np.diff(found) >= 0).all()
    assert values.min() <= found[0]
    assert found[-1] <= values.max()


@few
@given(values=values)
def test_as_many_parts_as_values_are_the_values(values):
    assert parts(values, len(values)) == pytest.approx(np.sort(values), abs=1e-3)


@few
@given(values=values)
def test_a_distribution_cut_again_is_the_same(values):
    once = distribution(values)
    again = distribution(np.array(once.quantiles))

    assert again.quantiles == pytest.approx(once.quantiles, abs=1e-3)
    assert len(once.quantiles) == QUANTILES


@few
@given(a=values, b=st.one_of(values, st.lists(st.integers(0, 3), min_size=1).map(np.array)))
def test_the_shares_of_two_samples_differ_most_where_they_do_of_all_their_values(a, b):
    shares = [
        np.searchsorted(np.sort(each), np.concatenate((a, b)), side="right") / len(each)
        for each in (a, b)
    ]

    assert kolmogorov_smirnov(np.sort(a), np.sort(b)) == np.abs(shares[0] - shares[1]).max()


@few
@given(a=values, b=values)
def test_the_distance_between_parts_is_wassersteins_or_a_little_less(a, b):
    """Never more; less only by what crosses within a part."""
    found = np.abs(parts(a) - parts(b)).mean()
    from scipy.stats import wasserstein_distance

    true = wasserstein_distance(a, b)
    widths = sum(np.ptp(each) / QUANTILES for each in (a, b))

    assert found <= true * (1 + 1e-6) + 1e-3
    assert found >= true - 2 * widths - 1e-3


@few
@given(
    size=st.integers(1, 40),
    steps=st.lists(st.one_of(st.integers(1, 30), st.sampled_from([2, 3])), max_size=12),
    drop=st.integers(2, 5),
)
def test_a_ring_is_a_list_that_forgets(size, steps, drop):
    ring, expected, number = Ring(size, 1), deque(maxlen=size), 0
    for turn, step in enumerate(steps):
        for _ in range(step):
            number += 1
            ring.append((float(number),))
            expected.append(number)
        if turn % 3 == 2:
            ring.keep(ring.rows()[:, 0] % drop != 0)
            expected = deque((n for n in expected if n % drop), maxlen=size)
        assert ring.rows()[:, 0].tolist() == list(expected)
        assert len(ring) == len(expected)


@few
@given(values=values, count=st.integers(1, 100))
def test_parts_are_the_same_to_the_bit_as_by_the_functions_that_say_what_they_are(values, count):
    n, ordered = len(values), np.sort(values).astype(np.float64)
    sums = np.concatenate(([0.0], np.cumsum(ordered)))
    at_edges = np.interp(np.linspace(0, n, count + 1), np.arange(n + 1), sums)
    means = np.clip(np.diff(at_edges) * (count / n), ordered[0], ordered[-1])

    assert parts(values, count).tobytes() == np.maximum.accumulate(means).tobytes()
