"""Policies: the order in which waiting requests are served.

A policy is a sort key, not a queue, so a new one takes about ten lines and one heap implementation
serves all. No policy can starve a request: the guard limits what is dispatched before it
(`core/scheduler/guard.py`).
"""

import math
from collections.abc import Callable, Hashable, Sequence
from itertools import accumulate
from typing import Any, ClassVar, Protocol

from kairos.core.core_names import named
from kairos.core.model import Request
from kairos.core.scheduler.work_estimates import WorkEstimates

Key = tuple[float, ...]


class Policy(Protocol):
    """Order of waiting requests, smallest key first."""

    def state(self, request: Request) -> Hashable:
        """Return the workflow state that the keys of its requests depend on.

        When a fact about one of its requests changes the state, its waiting requests get new keys.
        """

    def key(self, request: Request, state: Any, /) -> Key:
        """Return the request's key, given the current `state` of its workflow.

        Pure, and constant while the state and `WorkEstimates.epoch` are.
        """

    def patience_us(self, request: Request) -> int | None:
        """Return how long the request may wait until it precedes all others; None: no limit."""


class _Plain:
    """A policy whose keys change only with what was learnt."""

    def __init__(self, estimates: WorkEstimates) -> None:
        self._estimates = estimates

    def state(self, request: Request) -> Hashable:  # noqa: ARG002
        return None

    def patience_us(self, request: Request) -> int | None:  # noqa: ARG002
        return None


class Fcfs(_Plain):
    """First come, first served, call by call, as in vLLM, and in Parrot in the Kairos paper."""

    def key(self, request: Request, _state: Hashable, /) -> Key:
        return (request.arrived_at,)


class FcfsApp(_Plain):
    """The oldest workflow first, regardless of its remaining work. Needs workflows' start times."""

    def key(self, request: Request, _state: Hashable, /) -> Key:
        return request.workflow_started_at, request.arrived_at


class WassersteinMds(_Plain):
    """Policy of the Kairos paper (5): agents with least remaining work first, then older workflows.

    Remaining work is measured by the agents' ranks (`core/scheduler/ranking.py`).
    """

    def key(self, request: Request, _state: Hashable, /) -> Key:
        rank = self._estimates.rank(request) or 0.0
        return rank, request.workflow_started_at, request.arrived_at


def gittins_index(values: Sequence[float]) -> float:
    """Return the minimum over t of E[min(X, t)] / P(X <= t).

    `values` are equally likely values of X, ascending.
    """
    n = len(values)
    return min(
        (below + value * (n - i)) / i
        for i, (value, below) in enumerate(zip(values, accumulate(values), strict=True), start=1)
    )


class LeastWorkLeft(_Plain):
    """Least remaining work of the workflow first, estimated from its position. Not in the paper.

    The work from a call on is estimated from its agent, the calls and visits before it, the work
    done so far and the prompt (`position.features`). Calls of one workflow that are in flight
    together are joined eventually, so all count: the remaining work is that of the longest one,
    plus the other calls themselves. So the last straggler of a fan-out precedes a fan-out that has
    just begun. Within a workflow, a call with slack yields to the call that the join will wait for.
    Applications are compared by the Gittins index: if estimates are often far off, the chance of an
    early end counts (Gittins, 1979: the best ratio, over all times to stop, of expected service to
    the chance of an end).

    Differences below `LEVEL` are treated as ties: the older workflow is served first (kairos paper,
    5.2), and a wide fan-out gets new keys now and then, not after each call that ends.
    """

    LEVEL: ClassVar = 1.01

    def __init__(self, estimates: WorkEstimates) -> None:
        super().__init__(estimates)
        self._log_level = math.log(self.LEVEL)
        self._epoch = -1
        self._indices: dict[tuple[str, str], float] = {}  # by app, in that epoch

    def key(self, request: Request, state: int, /) -> Key:
        remaining_us = self._estimates.remaining_us(request)
        level = state + self._level(self._index(request))
        return level, request.workflow_started_at, -remaining_us, request.arrived_at

    def state(self, request: Request) -> int:
        """Return the level of the workflow's work only: its calls may name different apps."""
        return self._level(self._estimates.left_us(request))

    def _level(self, size: float) -> int:
        return int(math.log(size) / self._log_level)

    def _index(self, request: Request) -> float:
        """Return the Gittins index of the app's ratios of actual to expected remaining work.

        1 for workflows with a declared plan, whose estimates are seldom far off.
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


POLICIES: dict[str, Callable[[WorkEstimates], Policy]] = {
    "fcfs": Fcfs,
    "fcfs-app": FcfsApp,
    "wasserstein-mds": WassersteinMds,
    "kairos": LeastWorkLeft,
}


def policy_named(name: str) -> Callable[[WorkEstimates], Policy]:
    """Return the policy of this name.

    Raises:
        SetupError: the name is unknown, and nothing can be imported by it.
    """
    return named("policy", name, POLICIES)
