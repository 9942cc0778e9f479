"""Ordering accuracy, as section 7.4 of the Kairos paper defines it.

All requests are pending at once. Each is paired with every other one, and the share of its pairs
that the order has as the truth has them is its accuracy; the accuracy of the order is the mean over
the requests. What the paper leaves open, we settle so: two requests that the order holds equal
count a half; pairs whose truth is equal are left out, and so are pairs of one workflow, whose calls
follow one another and hardly ever wait together; a request without a pair is left out.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]

_ROWS = 512  # requests compared with all others at a time: bounds the memory


def places(keys: Sequence[object]) -> Ints:
    """Each key's place among the different keys, from 0. Keys can be compared with one another."""
    place = {key: n for n, key in enumerate(sorted(set(keys)))}  # type: ignore[type-var]
    return np.array([place[key] for key in keys], dtype=np.int64)


def accuracy(order: Ints, truth: Ints, workflow: Ints, agent: Ints | None) -> float | None:
    """Share of pairs in the right order, 0 to 1; None when there is no pair.

    Args:
        order: what goes first is smaller, one per request.
        truth: remaining latency, one per request.
        workflow: whose request it is; pairs of the same are left out.
        agent: likewise, where only pairs of different agents count; None: all pairs do.
    """
    shares: list[float] = []
    for begin in range(0, len(order), _ROWS):
        rows = slice(begin, begin + _ROWS)
        ours, true = _signs(order, rows), _signs(truth, rows)
        counted = (true != 0) & (workflow[rows, None] != workflow)
        if agent is not None:
            counted &= agent[rows, None] != agent
        pairs = counted.sum(axis=1)
        # +1 for a pair in the right order, 0 for one held equal, -1 for a wrong one.
        balance = (ours * true * counted).sum(axis=1, dtype=np.int64)
        some = pairs > 0
        shares.extend(((pairs[some] + balance[some]) / (2 * pairs[some])).tolist())
    return float(np.mean(shares)) if shares else None


def _signs(values: Ints, rows: slice) -> NDArray[np.int8]:
    """Of the rows against all: -1, 0 or 1, shape [rows, requests]."""
    mine = values[rows, None]
    return (mine > values).astype(np.int8) - (mine < values).astype(np.int8)
