"""Policies that Kairos is compared with: `kairos serve --policy experiments.baseline_policies:Las`.

They rest on no class of Kairos, so that they serve with a compiled brain, too. The starvation guard
bounds what goes before a request, as with any other policy.
"""

import math
from collections.abc import Callable, Hashable
from typing import Any, ClassVar

from kairos.core import POLICIES as OWN
from kairos.core import SECOND, Policy, Request, WorkEstimates, workflow_key
from kairos.core.scheduler.policies import Key, gittins_index


class _Plain:
    """A policy whose keys only change with what was learnt."""

    def __init__(self, estimates: WorkEstimates) -> None:
        self._estimates = estimates

    def state(self, request: Request) -> Hashable:  # noqa: ARG002
        return None

    def patience_us(self, request: Request) -> int | None:  # noqa: ARG002
        return None


class Ayo(_Plain):
    """Fewest remaining stages first, across all applications: Ayo as the Kairos paper describes it
    (2.2, 7.1). As published, Ayo is first come, first served between queries, and uses depth within
    one only. Needs each agent's mean remaining stages, which here are learnt, not declared."""

    def key(self, request: Request, _state: Hashable, /) -> Key:
        profile = self._estimates.profile(request)
        return profile.remaining_stages if profile else 0.0, request.arrived_at


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
        """Ratios of remaining to expected work, one for each app.

        A declared plan is not often far off.
        """
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


class Las:
    """Least attained service of the workflow first, in doubling levels: Autellix's PLAS.

    A workflow that has waited for more than `GUARD` times what it has been served goes first, its
    starvation guard. Needs nothing that is learnt. Deviation: the levels are fixed, not tuned to a
    trace.
    """

    # Attained service of the first level; each further one is twice as wide.
    LEVEL_US: ClassVar = SECOND
    GUARD: ClassVar = 10

    def __init__(self, estimates: WorkEstimates) -> None:
        self._positions = estimates.positions

    def state(self, request: Request) -> int:
        """Return the level of a call."""
        served_us, _ = self._positions.attained(workflow_key(request))
        return (served_us // self.LEVEL_US).bit_length()

    def key(self, request: Request, state: int, /) -> Key:
        return state, request.arrived_at

    def patience_us(self, request: Request) -> int | None:
        served_us, waited_us = self._positions.attained(workflow_key(request))
        return max(0, self.GUARD * served_us - waited_us) if served_us else None


POLICIES: dict[str, Callable[[WorkEstimates], Policy]] = {
    **OWN,
    "ayo": Ayo,
    "mean": Mean,
    "gittins": Gittins,
    "las": Las,
}
