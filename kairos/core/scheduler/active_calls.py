"""Calls in flight as estimates keep them, and those of one workflow together."""

from kairos.core.model import Request
from kairos.core.position import Position
from kairos.core.scheduler.declared_work import DeclaredWork


class PendingCall:
    """A request in flight, waiting or running, and what is expected of it."""

    call_us: int = 0
    remaining_us: float = 0.0
    epoch: int = -1  # of the knowledge that these two come from
    features: tuple[float, ...] | None = None  # of the position; None: not asked for yet

    def __init__(
        self,
        request: Request,
        position: Position,
        plan: DeclaredWork | None = None,
    ) -> None:
        self.request = request
        self.position = position
        self.plan = plan  # that its workflow follows


class ActiveCalls:
    """The calls of one workflow that are in flight at the same time."""

    def __init__(self, plan: DeclaredWork | None) -> None:
        self.plan = plan  # that was declared when the first of them came
        self.standings: dict[str, PendingCall] = {}
        self.calls_us = 0  # of all of them
        self.longest: PendingCall | None = None  # of which most remains; None: to be found anew
        self.open_us: float | None = None  # of its plan's calls that are to come; None: likewise
        self.epoch = -1  # of the knowledge that these come from
