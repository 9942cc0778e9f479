"""Meaning of each reason to refuse a call: one table for clients, the log, metrics and people."""

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
    """Meaning of one reason to refuse a call."""

    outcome: Outcome  # outcome of the call in metrics
    words: str  # explanation for people
    error: Callable[[Refuse], KairosError]  # the error for its client
    at_arrival: bool = False  # decided on arrival, so it does not count for the drain rate
    wherever: bool = False  # the call may be running already


REFUSALS: Mapping[Refusal, Meaning] = {
    "no_instance": Meaning(
        outcome="refused",
        words="no instance was left that could take it",
        error=lambda refuse: NoInstance(refuse.model),
    ),
    "no_other": Meaning(
        outcome="failed",
        words="all instances that serve its model had failed it",
        error=lambda refuse: NoInstance(refuse.model),
    ),
    "breaks_engines": Meaning(
        outcome="failed",
        words="engines that serve other calls failed on it",
        error=lambda _: CallBreaksEngines(),
    ),
    "waited_too_long": Meaning(
        outcome="refused",
        words="it had reached the maximum wait",
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
        words="it could not finish by its deadline",
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
        words="its workflow was out of time",
        error=lambda _: BudgetExceeded("time", "has had its time"),
        wherever=True,
    ),
}
