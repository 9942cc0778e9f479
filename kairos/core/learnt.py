"""What has been learnt, as it travels from the orchestrator, which learns, to the scheduler.

An agent is known by tenant, app and name; calls that name no app or agent go by the empty name.
`POOLED` stands for all agents: of an app (where an agent is not known, or the app has too many),
or, as app and tenant too, of everything.
"""

import math
from collections.abc import Sequence
from functools import lru_cache

import msgspec
import numpy as np
import numpy.typing as npt

from kairos.core.agent_key import AgentKey
from kairos.core.model import SECOND

POOLED = "*"  # no identifier, so no client can claim it
QUANTILES = 64
ROUNDING = 1e-3  # of a step: numbers are learnt from in 32 bits
MAX_REMAINING_US = 86_400 * SECOND
_CUTS_KEPT = 300  # samples of so many values at most: those of the scheduler; 0.5 MB
_MAX_LOGARITHM = math.log(MAX_REMAINING_US)

Floats = npt.NDArray[np.floating]


class Distribution(msgspec.Struct, frozen=True):
    """A sample, cut into `QUANTILES` equal parts in ascending order: the mean of each.

    They serve as its quantiles at (i + 1/2) / QUANTILES, and their mean is the sample's.
    """

    mean: float
    quantiles: tuple[float, ...]


def parts(values: Floats, count: int = QUANTILES) -> npt.NDArray[np.float64]:
    """The sample cut into so many equal parts, in ascending order: the mean of each.

    That is the quantile function, averaged over each part: exact for samples of any size, and the
    parts have the sample's mean. At least one value.
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
    """Where so many values are cut into so many parts, and the places between them."""
    edges = np.arange(count + 1) * (n / count)  # as `linspace`, which takes longer than the rest
    edges[-1] = n
    return edges, np.arange(n + 1)


def distribution(values: Floats) -> Distribution:
    means = parts(values)
    total = np.add.reduce(means)  # as `sum`, at half of what that takes
    return Distribution(mean=float(total / len(means)), quantiles=tuple(means.tolist()))


@lru_cache(maxsize=1024)
def exponential(mean: float, count: int = QUANTILES) -> Distribution:
    """What is assumed of numbers of which only the mean is guessed."""
    quantiles = tuple(-mean * math.log1p(-(i + 0.5) / count) for i in range(count))
    return Distribution(mean, quantiles)


class AgentProfile(msgspec.Struct, frozen=True, kw_only=True):
    """What one agent's calls were like: kairos paper, 4.3. Queueing and tools' time excluded."""

    tenant: str
    app: str
    agent: str
    samples: int  # calls in the window, of workflows that ended
    converged: bool
    call_us: Distribution  # execution latency of one call
    completion_tokens: Distribution | None  # None: no engine told
    remaining_us: Distribution  # execution latency of the workflow from that call on, included
    remaining_stages: float  # mean, that call included

    @property
    def key(self) -> AgentKey:
        return self.tenant, self.app, self.agent


class Sighting(msgspec.Struct, frozen=True):
    """A call that may have waited for more branches than the one that it names.

    `caller`, with the call's agent, is the place: the agent above all of these branches.
    """

    agent: str
    caller: str | None
    after_us: int  # from the end of the named call until this call arrived
    # By agent of a branch's first call: from the end of the named call until the branch had ended,
    # as far as it had begun; negative if it ended before.
    others: tuple[tuple[str, int], ...]
    branch: str  # the agent of the branch that has the named call
    choices: (
        float  # logarithm of how many calls of the named agent each such call could choose from
    )


class JoinPlace(msgspec.Struct, frozen=True, kw_only=True):
    """A place at which calls may join branches, with its newest sightings; () if forgotten."""

    tenant: str
    app: str
    agent: str
    caller: str | None
    seen: int  # sightings that there ever were
    sightings: tuple[Sighting, ...]

    @property
    def key(self) -> tuple[str, ...]:
        """Return what it is known by; no agent's name is empty."""
        return self.tenant, self.app, self.agent, self.caller or ""


class RemainingModel(msgspec.Struct, frozen=True, kw_only=True):
    """ln(remaining_us) of an app's calls, linear in what `kairos.core.position.features` says of
    a call.

    An agent that is not in `agents` is taken for an average one of the app.
    """

    tenant: str
    app: str
    samples: int
    intercept: float
    weights: tuple[float, ...]  # one per feature
    lowest: tuple[float, ...]  # of each feature, as far as it was seen
    highest: tuple[float, ...]
    agents: dict[str, float]  # what is added for the agent
    steps: tuple[tuple[int, float], ...] = ()  # a feature, and its steps per unit
    habits: dict[str, tuple[dict[int, float], ...]] = {}  # what is added for the agent at a step
    residuals: tuple[float, ...]  # of ln(actual / predicted), cut as a `Distribution`

    def remaining_us(self, agent: str, features: Sequence[float]) -> float:
        """As likely exceeded as not, in µs; from 1 µs to a day.

        A feature beyond all that was seen counts as the last that was, so that nothing is told
        from a line drawn into the unknown.
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
    """Which step of a feature the value is on."""
    return math.floor(value * per_unit + ROUNDING)


class AgentRank(msgspec.Struct, frozen=True, array_like=True):
    """How far an agent is from having nothing left to do; smaller goes first."""

    tenant: str
    app: str
    agent: str
    rank: float

    @property
    def key(self) -> AgentKey:
        return self.tenant, self.app, self.agent
