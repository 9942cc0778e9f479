"""Policies: the order in which waiting requests are served.

A policy is a sort key, not a queue, so that a new one is about ten lines and one heap serves all.
None of them can starve a request: the guard bounds what goes before it (`core/scheduler/guard.py`).
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


class WassersteinMds(_Plain):
    """The Kairos paper (5): agents by their distance from having nothing left to do, then the older
    workflow first. Needs agents' ranks (`core/scheduler/ranking.py`)."""

    def key(self, request: Request, _state: Hashable, /) -> Key:
        rank = self._estimates.rank(request) or 0.0
        return rank, request.workflow_started_at, request.arrived_at


def gittins_index(values: Sequence[float]) -> float:
    """min over t of E[min(X, t)] / P(X <= t), for X one of these ascending values at random."""
    n = len(values)
    return min(
        (below + value * (n - i)) / i
        for i, (value, below) in enumerate(zip(values, accumulate(values), strict=True), start=1)
    )


class LeastWorkLeft(_Plain):
    """Least work left of the workflow first, as told from where it stands; ours.

    What remains from a call on is told from its agent, the calls and visits before it, the work
    done so far and the prompt (`position.features`). Calls of one workflow that are in flight
    together join in the end, so all of them count: what is left is what remains from the longest
    on, and the other calls themselves. So the last straggler of a fan-out goes before a fan-out
    that has just begun. Within a workflow a call with slack yields to the one that the join will
    wait for. Applications are compared by the Gittins index: where estimates are often far off, the
    chance of an early end counts (Gittins, 1979: the best ratio, over all times to stop, of
    expected service to the chance of an end).

    What differs by less than `LEVEL` is taken for equal: the older workflow goes first (kairos
    paper, 5.2), and a wide fan-out gets new keys now and then, not with each call that ends.
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
        """Of the workflow alone: its calls may name different applications."""
        return self._level(self._estimates.left_us(request))

    def _level(self, size: float) -> int:
        return int(math.log(size) / self._log_level)

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


POLICIES: dict[str, Callable[[WorkEstimates], Policy]] = {
    "fcfs": Fcfs,
    "fcfs-app": FcfsApp,
    "wasserstein-mds": WassersteinMds,
    "kairos": LeastWorkLeft,
}


def policy_named(name: str) -> Callable[[WorkEstimates], Policy]:
    """Raises SetupError: there is none of that name, and none can be imported by it."""
    return named("policy", name, POLICIES)
