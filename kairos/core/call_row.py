"""Summary of one call."""

import msgspec

from kairos.core.events import Dispatch
from kairos.core.model import Request
from kairos.core.refusals import Outcome


class CallRow(msgspec.Struct, gc=False):
    """Summary of a call up to its end. Times in µs; None: did not happen, or was not reported."""

    request: Request
    dispatch: Dispatch | None = None
    dispatched_at: int | None = None
    first_token_at: int | None = None
    ended_at: int | None = None
    outcome: Outcome | None = None
    why: str | None = None  # why it failed, or was refused or dropped
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    preemptions: int | None = None
    recomputed_tokens: int | None = None
    wasted_tokens: int | None = None  # generated for a call that failed

    @property
    def instance_id(self) -> str | None:
        return self.dispatch.instance_id if self.dispatch is not None else None

    @property
    def queued_us(self) -> int:
        """Return the time until it was dispatched, or, if it never was, until its end."""
        until = self.dispatched_at if self.dispatched_at is not None else self.ended_at
        return (until or self.request.arrived_at) - self.request.arrived_at
