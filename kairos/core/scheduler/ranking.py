"""Ranks of the agents of all apps, by their distance from having no work left (kairos paper, 5.1).

Pairwise Wasserstein-1 distances between the distributions of remaining work, with a "zero latency"
distribution among them, are embedded in one dimension by multidimensional scaling; an agent's rank
is its distance from that anchor.

Deviations: classical scaling, whose answer is unique; the paper names no kind (the iterative one
starts at random, and misorders agents that could be embedded exactly). Coordinates grow away from
the anchor, towards the mean of all, so an agent that lies on its other side ranks first. An agent
that changes is placed relative to the last embedding (Gower, 1968), and `embed` embeds all of them
again.
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

_DIGITS = 9  # relative to the largest mean; rounding to it keeps equal agents equal


class _Embedding:
    """Embedding of distributions on a line, in which further ones can be placed."""

    def __init__(self, quantiles: Floats) -> None:
        """Embed [n, q] ascending quantiles. Temporarily needs memory for (n + 1)² numbers."""
        self._scale = float(quantiles.mean(axis=1).max()) or 1.0
        self._points = np.vstack((np.zeros((1, quantiles.shape[1])), quantiles)) / self._scale
        squares = _distances(self._points, self._points)
        squares *= squares
        self._mean_squares = squares.mean(axis=0)
        self._axis = _first_axis(squares, self._points.mean(axis=1))
        coordinates = self._coordinates(squares)
        self._anchor = float(coordinates[0])
        self._sign = 1.0 if coordinates.mean() >= self._anchor else -1.0
        self.ranks = self._from_anchor(coordinates[1:])  # of the embedded distributions, [n]

    def place(self, quantiles: Floats) -> Floats:
        """Return the ranks of further distributions relative to the embedding: [m, q] -> [m]."""
        squares = _distances(quantiles / self._scale, self._points)
        squares *= squares
        return self._from_anchor(self._coordinates(squares))

    def _coordinates(self, squares: Floats) -> Floats:
        """Return the coordinates of points with squared distances [m, n + 1] to the embedded ones.

        This is Gower's formula for added points; it also reproduces the embedded points.
        """
        coordinates: Floats = (self._mean_squares @ self._axis - squares @ self._axis) / 2
        return coordinates

    def _from_anchor(self, coordinates: Floats) -> Floats:
        """Return ranks in the unit of the quantiles, rounded so that equal agents rank equal."""
        ranks: Floats = np.round(self._sign * (coordinates - self._anchor), _DIGITS) * self._scale
        return ranks


def _distances(a: Floats, b: Floats) -> Floats:
    """Return Wasserstein-1 distances, by quantiles: [n, q], [m, q] -> [n, m]."""
    from scipy.spatial.distance import cdist

    distances: Floats = cdist(a, b, "cityblock")
    distances /= a.shape[1]
    return distances


def _first_axis(squares: Floats, start: Floats) -> Floats:
    """Return the first axis of classical scaling, from squared distances [n, n].

    That is v / sqrt(λ) for the largest eigenvalue λ of the double-centred matrix and its
    eigenvector v; zeros if all points coincide. The matrix is centred during multiplication, not
    copied; the means are a start vector near the solution.
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
    """Ranks of all known agents. They do not depend on the order of updates."""

    def __init__(self) -> None:
        self._remaining: dict[AgentKey, Distribution] = {}
        self._ranks: dict[AgentKey, float] = {}
        self._embedding: _Embedding | None = None

    def __len__(self) -> int:
        return len(self._remaining)

    def update(self, profiles: Iterable[AgentProfile]) -> None:
        """Add or update agents.

        Takes one row of distances for each, to place it in the present embedding.
        """
        changed = {profile.key: profile.remaining_us for profile in profiles}
        self._remaining.update(changed)
        if self._embedding is not None and changed:
            self._set(changed, self._embedding.place(_matrix(changed.values())))

    def remove(self, key: AgentKey) -> None:
        """Remove an agent. The ranks of the others do not change."""
        self._remaining.pop(key, None)
        self._ranks.pop(key, None)

    def embed(self) -> None:
        """Embed all agents again, in O(n²): 5,000 take a second and 200 MB (`make bench`)."""
        ordered = dict(sorted(self._remaining.items()))
        if ordered:
            self._embedding = _Embedding(_matrix(ordered.values()))
            self._set(ordered, self._embedding.ranks)

    def ranks(self) -> list[AgentRank]:
        """Return all ranks, smallest first, ties by key. Embeds if that was never done."""
        if self._embedding is None:
            self.embed()
        ordered = sorted((rank, key) for key, rank in self._ranks.items())
        return [AgentRank(*key, rank) for rank, key in ordered]

    def kendall_tau(self) -> float | None:
        """Return Kendall's tau-b between the ranks and the mean remaining work.

        1: same order; 0: no correlation. None if there is nothing to order.
        """
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
    """Return Kendall's tau-b (1945) of two sequences, neither of them constant.

    Same result as `scipy.stats`, whose import takes half a second. 10 ms for 5,000 values.
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
