"""Calls in flight with their estimates, and grouped by workflow."""

from kairos.core.model import Request
from kairos.core.position import Position
from kairos.core.scheduler.declared_work import DeclaredWork


class PendingCall:
    """A request in flight, waiting or running, with its estimates."""

    call_us: int = 0
    remaining_us: float = 0.0
    epoch: int = -1  # epoch of the estimates that these two were computed in
    features: tuple[float, ...] | None = None  # of the position; None: not computed yet

    def __init__(
        self,
        request: Request,
        position: Position,
        plan: DeclaredWork | None = None,
    ) -> None:
        self.request = request
        self.position = position
        self.plan = plan  # the plan that its workflow follows


class ActiveCalls:
    """Calls of one workflow that are in flight at the same time."""

    def __init__(self, plan: DeclaredWork | None) -> None:
        self.plan = plan  # the plan declared when the first of them arrived
        self.standings: dict[str, PendingCall] = {}
        self.calls_us = 0  # expected latency of all of them
        self.longest: PendingCall | None = None  # with most remaining work; None: to be recomputed
        self.open_us: float | None = None  # of the plan's future calls; None: to be recomputed
        self.epoch = -1  # epoch of the estimates that these were computed in
