"""Policies: the order in which waiting requests are served.

A policy is a sort key, not a queue, so that a new one is about ten lines and one heap serves all.
None of them can starve a request: the guard bounds what goes before it (`scheduler/guard.py`).
"""

import math
from collections.abc import Callable, Hashable, Sequence
from itertools import accumulate
from typing import Any, ClassVar, Protocol

from kairos.model import SECOND, Request
from kairos.scheduler.work_estimates import WorkEstimates
from kairos.workflow_tracker import workflow_key

Key = tuple[float, ...]


class Policy(Protocol):
    """Orders waiting requests, smallest key first."""

    def state(self, request: Request) -> Hashable:
        """What the keys of the workflow's requests rest on beside the requests themselves. When a
        fact about one of them changes it, those that wait get new keys."""

    def key(self, request: Request, state: Any, /) -> Key:
        """In that state, which is the policy's own for the request now. Pure, and constant while it
        and `WorkEstimates.epoch` are."""

    def patience_us(self, request: Request) -> int | None:
        """How long the request may wait before it goes first; None: as long as any other."""


class _Plain:
    """A policy whose keys only change with what was learnt."""

    def __init__(self, estimates: WorkEstimates) -> None:
        self._estimates = estimates

    def state(self, request: Request) -> Hashable:  # noqa: ARG002
        return None

    def patience_us(self, request: Request) -> int | None:  # noqa: ARG002
        return None


class Fcfs(_Plain):
    """First come, first served, call by call: what vLLM does, and Parrot in the Kairos paper."""

    def key(self, request: Request, _state: Hashable, /) -> Key:
        return (request.arrived_at,)


class FcfsApp(_Plain):
    """The oldest workflow first, whatever it still needs. Needs each workflow's start time."""

    def key(self, request: Request, _state: Hashable, /) -> Key:
        return request.workflow_started_at, request.arrived_at


class Ayo(_Plain):
    """Fewest remaining stages first, across all applications: Ayo as the Kairos paper describes it
    (2.2, 7.1). As published, Ayo is first come, first served between queries, and uses depth within
    one only. Needs each agent's mean remaining stages, which here are learnt, not declared."""

    def key(self, request: Request, _state: Hashable, /) -> Key:
        profile = self._estimates.profile(request)
        return profile.remaining_stages if profile else 0.0, request.arrived_at


class WassersteinMds(_Plain):
    """The Kairos paper (5): agents by their distance from having nothing left to do, then the older
    workflow first. Needs agents' ranks (`scheduler/ranking.py`)."""

    def key(self, request: Request, _state: Hashable, /) -> Key:
        rank = self._estimates.rank(request) or 0.0
        return rank, request.workflow_started_at, request.arrived_at


class Mean(_Plain):
    """Least expected remaining work of the agent first, then the older workflow: what the paper's
    ranking comes to, without its embedding. Needs each agent's mean."""

    def key(self, request: Request, _state: Hashable, /) -> Key:
        profile = self._estimates.profile(request)
        mean_us = profile.remaining_us.mean if profile else 0.0
        return mean_us, request.workflow_started_at, request.arrived_at


class Gittins(_Plain):
    """Smallest Gittins index of the remaining work first (Gittins, 1979): the best ratio, over all
    times to stop, of expected service to the chance of an end. Optimal for the mean response time
    of a single server with known distributions. Here the distribution of a request is the model's
    estimate for its position and history, times how its app's calls come out against estimates.
    """

    def __init__(self, estimates: WorkEstimates) -> None:
        super().__init__(estimates)
        self._epoch = -1
        self._indices: dict[tuple[str, str], float] = {}  # by app, in that epoch

    def key(self, request: Request, _state: Any, /) -> Key:
        remaining_us = self._index(request) * self._estimates.remaining_us(request)
        return remaining_us, request.workflow_started_at, request.arrived_at

    def _index(self, request: Request) -> float:
        """Of what remains over what was expected: one number for each app. A declared plan is not
        often far off."""
        model = self._estimates.model(request)
        if model is None or self._estimates.follows_plan(request):
            return 1.0
        if self._epoch != self._estimates.epoch:
            self._epoch, self._indices = self._estimates.epoch, {}
        app = model.tenant, model.app
        if app not in self._indices:
            values = [math.exp(residual) for residual in model.residuals]
            self._indices[app] = gittins_index(values)
        return self._indices[app]


def gittins_index(values: Sequence[float]) -> float:
    """min over t of E[min(X, t)] / P(X <= t), for X one of these ascending values at random."""
    n = len(values)
    return min(
        (below + value * (n - i)) / i
        for i, (value, below) in enumerate(zip(values, accumulate(values), strict=True), start=1)
    )


class Las:
    """Least attained service of the workflow first, in doubling levels: Autellix's PLAS. A workflow
    that has waited for more than `GUARD` times what it has been served goes first, its starvation
    guard. Needs nothing that is learnt. Deviation: the levels are fixed, not tuned to a trace."""

    # Attained service of the first level; each further one is twice as wide.
    LEVEL_US: ClassVar = SECOND
    GUARD: ClassVar = 10

    def __init__(self, estimates: WorkEstimates) -> None:
        self._positions = estimates.positions

    def state(self, request: Request) -> int:
        """Its level."""
        served_us, _ = self._positions.attained(workflow_key(request))
        return (served_us // self.LEVEL_US).bit_length()

    def key(self, request: Request, state: int, /) -> Key:
        return state, request.arrived_at

    def patience_us(self, request: Request) -> int | None:
        served_us, waited_us = self._positions.attained(workflow_key(request))
        return max(0, self.GUARD * served_us - waited_us) if served_us else None


class LeastWorkLeft(Gittins):
    """Least work left of the workflow first, as told from where it stands; ours.

    What remains from a call on is told from its agent, the calls and visits before it, the work
    done so far and the prompt (`position.features`). Calls of one workflow that are in flight
    together join in the end, so all of them count: what is left is what remains from the longest
    on, and the other calls themselves. So the last straggler of a fan-out goes before a fan-out
    that has just begun. Within a workflow a call with slack yields to the one that the join will
    wait for. Applications are compared by the Gittins index: where estimates are often far off, the
    chance of an early end counts.

    What differs by less than `LEVEL` is taken for equal: the older workflow goes first (kairos
    paper, 5.2), and a wide fan-out gets new keys now and then, not with each call that ends.
    """

    LEVEL: ClassVar = 1.01

    def __init__(self, estimates: WorkEstimates) -> None:
        super().__init__(estimates)
        self._log_level = math.log(self.LEVEL)

    def key(self, request: Request, state: int, /) -> Key:
        remaining_us = self._estimates.remaining_us(request)
        level = state + self._level(self._index(request))
        return level, request.workflow_started_at, -remaining_us, request.arrived_at

    def state(self, request: Request) -> int:
        """Of the workflow alone: its calls may name different applications."""
        return self._level(self._estimates.left_us(request))

    def _level(self, size: float) -> int:
        return int(math.log(size) / self._log_level)


POLICIES: dict[str, Callable[[WorkEstimates], Policy]] = {
    "fcfs": Fcfs,
    "fcfs-app": FcfsApp,
    "ayo": Ayo,
    "wasserstein-mds": WassersteinMds,
    "mean": Mean,
    "gittins": Gittins,
    "las": Las,
    "kairos": LeastWorkLeft,
}
