"""What it means that a request is given up: one table for clients, the log, figures and people."""

from collections.abc import Callable, Mapping
from typing import Literal

import msgspec

from kairos.core.errors import (
    BudgetExceeded,
    CallBreaksEngines,
    DeadlineTooNear,
    GaveWay,
    KairosError,
    NoInstance,
    WaitedTooLong,
    WorkflowCancelled,
)
from kairos.core.events import Refusal, Refuse
from kairos.core.model import SECOND

Outcome = Literal["finished", "failed", "cancelled", "refused"]


class Meaning(msgspec.Struct, frozen=True, kw_only=True):
    """Of one reason for a refusal."""

    outcome: Outcome  # of the call, in figures
    words: str  # why it went no further
    error: Callable[[Refuse], KairosError]  # what its client is told
    at_arrival: bool = False  # it never was in the queue for good: it says nothing of its pace
    wherever: bool = False  # it may run already


REFUSALS: Mapping[Refusal, Meaning] = {
    "no_instance": Meaning(
        outcome="refused",
        words="no instance was left that could take it",
        error=lambda refuse: NoInstance(refuse.model),
    ),
    "no_other": Meaning(
        outcome="failed",
        words="no instance was left that had not failed it",
        error=lambda refuse: NoInstance(refuse.model),
    ),
    "breaks_engines": Meaning(
        outcome="failed",
        words="engines that serve other calls failed at it",
        error=lambda _: CallBreaksEngines(),
    ),
    "waited_too_long": Meaning(
        outcome="refused",
        words="it had waited as long as a call may",
        error=lambda _: WaitedTooLong(),
    ),
    "queue_full": Meaning(
        outcome="refused",
        words="its place in the full queue was needed for a workflow under way",
        error=lambda refuse: GaveWay(refuse.retry_after_s or 1),
        at_arrival=True,
    ),
    "too_late": Meaning(
        outcome="refused",
        words="it could not be done by its deadline",
        error=lambda refuse: DeadlineTooNear((refuse.needs_us or 0) / SECOND),
        at_arrival=True,
    ),
    "cancelled": Meaning(
        outcome="cancelled",
        words="its workflow was cancelled",
        error=lambda _: WorkflowCancelled(),
        wherever=True,
    ),
    "out_of_time": Meaning(
        outcome="cancelled",
        words="its workflow was out of its time",
        error=lambda _: BudgetExceeded("time", "has had its time"),
        wherever=True,
    ),
}
