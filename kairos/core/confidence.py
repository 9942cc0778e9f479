"""How far a mean over a few runs may be from that over all: bootstrap confidence intervals.

The percentile bootstrap (Efron, 1979): the runs are drawn again with replacement, as many as there
are, and the middle 95 % of the means that come of it are the interval. It is too narrow where runs
are few: of normal values the true mean is inside in 51 % of the cases with two of them, 75 % with
three, 84 % with five, 90 % with ten.
"""

from collections.abc import Sequence

import msgspec
import numpy as np

RESAMPLES = 10_000
LEVEL = 0.95


class Interval(msgspec.Struct, frozen=True):
    """The mean of some values, and where that of all there could be is likely to lie."""

    mean: float
    low: float
    high: float


def interval(values: Sequence[float], seed: int = 0) -> Interval | None:
    """The same for the same values and seed; None for fewer than two, of which nothing follows."""
    if len(values) < 2:
        return None
    sample = np.asarray(values, dtype=float)
    drawn = np.random.default_rng(seed).integers(len(sample), size=(RESAMPLES, len(sample)))
    means = sample[drawn].mean(axis=1)
    low, high = np.quantile(means, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Interval(float(sample.mean()), float(low), float(high))


def paired(first: Sequence[float], second: Sequence[float], seed: int = 0) -> Interval | None:
    """The first's values less the second's, run by run: what differs between runs but not between
    the two (arrivals, lengths) drops out."""
    return interval([one - other for one, other in zip(first, second, strict=True)], seed)


def ratio(first: Sequence[float], second: Sequence[float], seed: int = 0) -> Interval | None:
    """The mean of the first over that of the second; pairs are drawn together. None for fewer than
    two pairs, or where the second is nothing."""
    count = len(first)
    if count < 2 or count != len(second) or not all(second):
        return None
    pairs = np.array([first, second], dtype=float)
    drawn = np.random.default_rng(seed).integers(count, size=(RESAMPLES, count))
    of_first, of_second = pairs[:, drawn].mean(axis=2)
    low, high = np.quantile(of_first / of_second, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Interval(float(pairs[0].mean() / pairs[1].mean()), float(low), float(high))
