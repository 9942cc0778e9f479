"""Agents of all apps on one line, by how far each is from having nothing left: kairos paper, 5.1.

Pairwise Wasserstein-1 distances between the distributions of remaining work, with a "zero latency"
distribution among them, embedded in one dimension by multidimensional scaling; an agent's rank is
how far it lies from that anchor.

Deviations: classical scaling, whose answer is unique, where the paper names no kind (the iterative
one starts at random, and misorders agents that could be embedded exactly). Coordinates grow away
from the anchor, towards the mean of all, so an agent that comes to lie beyond it goes first. An
agent that changes is placed against the others as they were embedded last (Gower, 1968), and all
are embedded anew when `embed` is called.
"""

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence

import numpy as np
import numpy.typing as npt

from kairos.core.agent_key import AgentKey
from kairos.core.learnt import AgentProfile, AgentRank, Distribution

Floats = npt.NDArray[np.float64]

_DIGITS = 9  # of the largest mean: what rounding leaves of equal agents' equality


class _Embedding:
    """Where some distributions lie on a line, and where any other would."""

    def __init__(self, quantiles: Floats) -> None:
        """Takes [n, q] ascending quantiles; needs (n + 1)² numbers of memory while it works."""
        self._scale = float(quantiles.mean(axis=1).max()) or 1.0
        self._points = np.vstack((np.zeros((1, quantiles.shape[1])), quantiles)) / self._scale
        squares = _distances(self._points, self._points)
        squares *= squares
        self._mean_squares = squares.mean(axis=0)
        self._axis = _first_axis(squares, self._points.mean(axis=1))
        coordinates = self._coordinates(squares)
        self._anchor = float(coordinates[0])
        self._sign = 1.0 if coordinates.mean() >= self._anchor else -1.0
        self.ranks = self._from_anchor(coordinates[1:])  # of the embedded, [n]

    def place(self, quantiles: Floats) -> Floats:
        """The ranks of other distributions, against those that are embedded: [m, q] -> [m]."""
        squares = _distances(quantiles / self._scale, self._points)
        squares *= squares
        return self._from_anchor(self._coordinates(squares))

    def _coordinates(self, squares: Floats) -> Floats:
        """Of points whose squared distances from those on the line are [m, n + 1]: Gower's formula
        for a point that is added. Those that are embedded find their own place by it."""
        coordinates: Floats = (self._mean_squares @ self._axis - squares @ self._axis) / 2
        return coordinates

    def _from_anchor(self, coordinates: Floats) -> Floats:
        """In the unit of the quantiles, and rounded, so that equal agents are equal."""
        ranks: Floats = np.round(self._sign * (coordinates - self._anchor), _DIGITS) * self._scale
        return ranks


def _distances(a: Floats, b: Floats) -> Floats:
    """Wasserstein-1 between distributions told by their quantiles: [n, q], [m, q] -> [n, m]."""
    from scipy.spatial.distance import cdist

    distances: Floats = cdist(a, b, "cityblock")
    distances /= a.shape[1]
    return distances


def _first_axis(squares: Floats, start: Floats) -> Floats:
    """The first axis of classical scaling, from squared distances [n, n]: v / sqrt(λ), for the
    largest eigenvalue λ of the double-centred matrix and its vector v. Zeros if all is one point.

    The matrix is centred as it is multiplied, not copied; the means are a start near the answer.
    """
    from scipy.sparse.linalg import LinearOperator, eigsh

    n = len(squares)
    if not squares.any():
        return np.zeros(n)

    def centred(vector: Floats) -> Floats:
        product = squares @ (vector - vector.mean())
        halved: Floats = (product.mean() - product) / 2
        return halved

    operator = LinearOperator((n, n), matvec=lambda v: centred(v.ravel()), dtype=np.float64)
    values, vectors = eigsh(operator, k=1, which="LA", v0=start - start.mean(), ncv=min(n, 8))
    axis: Floats = vectors[:, 0] / np.sqrt(values[0])
    return axis


class Ranking:
    """Ranks of all agents that it was told of. In which order it was told does not matter."""

    def __init__(self) -> None:
        self._remaining: dict[AgentKey, Distribution] = {}
        self._ranks: dict[AgentKey, float] = {}
        self._embedding: _Embedding | None = None

    def __len__(self) -> int:
        return len(self._remaining)

    def update(self, profiles: Iterable[AgentProfile]) -> None:
        """Take in what changed: for each agent one row of distances, and its place against those
        that are embedded."""
        changed = {profile.key: profile.remaining_us for profile in profiles}
        self._remaining.update(changed)
        if self._embedding is not None and changed:
            self._set(changed, self._embedding.place(_matrix(changed.values())))

    def remove(self, key: AgentKey) -> None:
        """Forget an agent. The others keep their places."""
        self._remaining.pop(key, None)
        self._ranks.pop(key, None)

    def embed(self) -> None:
        """Place all agents anew. O(n²): a second and 200 MB for 5,000 of them (`make bench`)."""
        ordered = dict(sorted(self._remaining.items()))
        if ordered:
            self._embedding = _Embedding(_matrix(ordered.values()))
            self._set(ordered, self._embedding.ranks)

    def ranks(self) -> list[AgentRank]:
        """All, smallest rank first, equal ones by key. Embeds if that was never done."""
        if self._embedding is None:
            self.embed()
        ordered = sorted((rank, key) for key, rank in self._ranks.items())
        return [AgentRank(*key, rank) for rank, key in ordered]

    def kendall_tau(self) -> float | None:
        """How far the order of ranks agrees with the order of mean remaining work: 1 throughout,
        0 no more than chance. Equal ones are no disagreement (tau-b). None: nothing to order."""
        ranked = self.ranks()
        means = [self._remaining[rank.key].mean for rank in ranked]
        if len(set(means)) < 2 or len({each.rank for each in ranked}) < 2:
            return None
        return kendall_tau_b([each.rank for each in ranked], means)

    def _set(self, agents: Iterable[AgentKey], ranks: Floats) -> None:
        self._ranks.update(zip(agents, ranks.tolist(), strict=True))


def _matrix(distributions: Iterable[Distribution]) -> Floats:
    return np.array([each.quantiles for each in distributions], dtype=np.float64)


def kendall_tau_b(xs: Sequence[float], ys: Sequence[float]) -> float:
    """How far two orders of the same things agree: Kendall (1945). Neither is of equal ones alone.

    Counted here, to the digit of `scipy.stats`: to import that takes half a second. 10 ms for
    5,000 of them.
    """
    pairs = sorted(zip(xs, ys, strict=True))
    before: list[float] = []  # ascending
    against = 0
    for _, y in pairs:
        place = bisect_right(before, y)
        against += len(before) - place
        before.insert(place, y)
    all_pairs = math.comb(len(pairs), 2)
    of_x, of_y = all_pairs - _equal_pairs(xs), all_pairs - _equal_pairs(ys)
    agreement = of_x + of_y - all_pairs + _equal_pairs(pairs) - 2 * against
    return min(1.0, max(-1.0, agreement / math.sqrt(of_x) / math.sqrt(of_y)))


def _equal_pairs(values: Iterable[Hashable]) -> int:
    return sum(math.comb(number, 2) for number in Counter(values).values())
