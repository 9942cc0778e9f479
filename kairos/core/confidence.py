"""Bootstrap confidence intervals of a mean over a few runs.

The percentile bootstrap (Efron, 1979): the runs are resampled with replacement, and the interval is
the middle 95 % of the resulting means. It is too narrow for few runs: for normal values the true
mean is inside in 51 % of the cases with two runs, 75 % with three, 84 % with five, 90 % with ten.
"""

from collections.abc import Sequence

import msgspec
import numpy as np

RESAMPLES = 10_000
LEVEL = 0.95
_SEED = 0


class Interval(msgspec.Struct, frozen=True):
    """Mean of some values, and the confidence interval of the true mean."""

    mean: float
    low: float
    high: float


def mean_interval(values: Sequence[float]) -> Interval | None:
    """Return the interval, or None for fewer than two values; the same for the same values."""
    if len(values) < 2:
        return None
    sample = np.asarray(values, dtype=float)
    drawn = np.random.default_rng(_SEED).integers(len(sample), size=(RESAMPLES, len(sample)))
    means = sample[drawn].mean(axis=1)
    low, high = np.quantile(means, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Interval(float(sample.mean()), float(low), float(high))


def difference_interval(first: Sequence[float], second: Sequence[float]) -> Interval | None:
    """Return the interval of the differences, first minus second, run by run.

    Effects that differ between runs but not within a pair (arrivals, lengths) cancel out.
    """
    return mean_interval([one - other for one, other in zip(first, second, strict=True)])


def ratio_interval(first: Sequence[float], second: Sequence[float]) -> Interval | None:
    """Return the interval of the ratio of means, first over second, resampling pairs.

    None for fewer than two pairs, or if a value of the second is 0.
    """
    count = len(first)
    if count < 2 or count != len(second) or not all(second):
        return None
    pairs = np.array([first, second], dtype=float)
    drawn = np.random.default_rng(_SEED).integers(count, size=(RESAMPLES, count))
    of_first, of_second = pairs[:, drawn].mean(axis=2)
    low, high = np.quantile(of_first / of_second, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Interval(float(pairs[0].mean() / pairs[1].mean()), float(low), float(high))
