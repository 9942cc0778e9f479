"""Learnt values, as the orchestrator publishes them and the scheduler uses them.

An agent is identified by tenant, app and name; calls without an app or agent use the empty name.
`POOLED` stands for all agents: of an app (for unknown agents, or if the app has too many), or, as
app and tenant too, of everything.
"""

import math
from collections.abc import Sequence
from functools import lru_cache

import msgspec
import numpy as np
import numpy.typing as npt

from kairos.core.agent_key import AgentKey
from kairos.core.model import SECOND

POOLED_AGENT = "*"  # not an identifier, so no client can claim it
QUANTILES = 64
ROUNDING = 1e-3  # tolerance, as a part of a step: training data has 32 bits
MAX_REMAINING_US = 86_400 * SECOND
_CUTS_KEPT = 300  # cuts are cached for samples up to this size, as in the scheduler; 0.5 MB
_MAX_LOGARITHM = math.log(MAX_REMAINING_US)

Floats = npt.NDArray[np.floating]


class Distribution(msgspec.Struct, frozen=True):
    """A sample, cut into `QUANTILES` equal parts in ascending order: the mean of each part.

    The means serve as quantiles at (i + 1/2) / QUANTILES, and their mean is the sample's.
    """

    mean: float
    quantiles: tuple[float, ...]


def parts(values: Floats, count: int = QUANTILES) -> npt.NDArray[np.float64]:
    """Return the means of the sample's equal parts, in ascending order.

    That is the quantile function, averaged over each part: exact for samples of any size, and with
    the sample's mean. Needs at least one value.
    """
    n = len(values)
    ordered = values.astype(np.float64)
    ordered.sort()
    sums = np.zeros(n + 1)
    ordered.cumsum(out=sums[1:])
    edges, places = _cut(n, count) if n <= _CUTS_KEPT else _cut.__wrapped__(n, count)
    at_edges = np.interp(edges, places, sums)
    means = (at_edges[1:] - at_edges[:-1]) * (count / n)
    np.minimum(np.maximum(means, ordered[0], out=means), ordered[-1], out=means)
    return np.maximum.accumulate(means)  # ascending despite rounding


@lru_cache(maxsize=_CUTS_KEPT)
def _cut(n: int, count: int) -> tuple[Floats, npt.NDArray[np.int_]]:
    """Return the edges of `count` parts of n values, and the indices of the values."""
    edges = np.arange(count + 1) * (n / count)  # like `linspace`, but faster
    edges[-1] = n
    return edges, np.arange(n + 1)


def distribution(values: Floats) -> Distribution:
    means = parts(values)
    total = np.add.reduce(means)  # like `sum`, but twice as fast
    return Distribution(mean=float(total / len(means)), quantiles=tuple(means.tolist()))


@lru_cache(maxsize=1024)
def exponential_distribution(mean: float, count: int = QUANTILES) -> Distribution:
    """Return an exponential distribution, assumed if only a mean is guessed."""
    quantiles = tuple(-mean * math.log1p(-(i + 0.5) / count) for i in range(count))
    return Distribution(mean, quantiles)


class AgentProfile(msgspec.Struct, frozen=True, kw_only=True):
    """Statistics of one agent's calls (kairos paper, 4.3), without queueing and tools' time."""

    tenant: str
    app: str
    agent: str
    samples: int  # calls of ended workflows in the window
    converged: bool
    call_us: Distribution  # execution latency of one call
    completion_tokens: Distribution | None  # None: not reported by any engine
    remaining_us: Distribution  # execution latency of the workflow from a call on, itself included
    remaining_stages: float  # mean number of calls on the critical path, the call included

    @property
    def key(self) -> AgentKey:
        return self.tenant, self.app, self.agent


class Sighting(msgspec.Struct, frozen=True):
    """Observation of a call that may have waited for more branches than the one it names.

    `caller`, with the call's agent, identifies the place: the agent above all of these branches.
    """

    agent: str
    caller: str | None
    after_us: int  # time from the end of the named call to the arrival of this call
    # By agent of a branch's first call: time from the end of the named call to the end of the
    # branch, as far as it had begun; negative if it ended before.
    others: tuple[tuple[str, int], ...]
    branch: str  # the agent of the branch with the named call
    # Logarithm of the number of calls of the named agent per call that names it.
    choices: float


class JoinPlace(msgspec.Struct, frozen=True, kw_only=True):
    """Place at which calls may join branches, with its newest sightings; () if forgotten."""

    tenant: str
    app: str
    agent: str
    caller: str | None
    seen: int  # number of sightings so far
    sightings: tuple[Sighting, ...]

    @property
    def key(self) -> tuple[str, ...]:
        """Return a unique key; an agent's name is never empty."""
        return self.tenant, self.app, self.agent, self.caller or ""


class RemainingModel(msgspec.Struct, frozen=True, kw_only=True):
    """Model of ln(remaining_us) of an app's calls, linear in `kairos.core.position.features`.

    An agent that is not in `agents` is treated as an average agent of the app.
    """

    tenant: str
    app: str
    samples: int
    intercept: float
    weights: tuple[float, ...]  # one per feature
    lowest: tuple[float, ...]  # lowest observed value of each feature
    highest: tuple[float, ...]  # highest observed value of each feature
    agents: dict[str, float]  # term added for the agent
    steps: tuple[tuple[int, float], ...] = ()  # a feature, and its steps per unit
    habits: dict[str, tuple[dict[int, float], ...]] = {}  # term added for the agent at a step
    residuals: tuple[float, ...]  # of ln(actual / predicted), cut like a `Distribution`

    def remaining_us(self, agent: str, features: Sequence[float]) -> float:
        """Return the median of the remaining work, in µs, from 1 µs to a day.

        A feature outside its observed range is clipped to it, so that the model does not
        extrapolate.
        """
        logarithm = self.intercept + self.agents.get(agent, 0.0)
        for weight, lowest, highest, value in zip(
            self.weights, self.lowest, self.highest, features, strict=True
        ):
            if value < lowest:
                value = lowest  # noqa: PLW2901
            elif value > highest:
                value = highest  # noqa: PLW2901
            logarithm += weight * value
        for (feature, per_unit), habit in zip(self.steps, self.habits.get(agent, ()), strict=False):
            logarithm += habit.get(step(features[feature], per_unit), 0.0)
        return math.exp(min(max(logarithm, 0.0), _MAX_LOGARITHM))


def step(value: float, per_unit: float) -> int:
    """Return the step of a feature on which the value lies."""
    return math.floor(value * per_unit + ROUNDING)


class AgentRank(msgspec.Struct, frozen=True, array_like=True):
    """Distance of an agent from having no work left; smaller ranks are served first."""

    tenant: str
    app: str
    agent: str
    rank: float

    @property
    def key(self) -> AgentKey:
        return self.tenant, self.app, self.agent
