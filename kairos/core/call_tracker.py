"""Collect the facts of each call into one `CallRow`.

Kinds of facts are distinguished by `type`, here and wherever each fact passes: a negative
`isinstance` takes 0.3 µs for a Struct, whose class has a metaclass.
"""

from kairos.core.call_row import CallRow
from kairos.core.events import (
    Arrived,
    Bounced,
    Cancelled,
    Dispatch,
    Failed,
    Finished,
    FirstToken,
    Record,
    Refuse,
)
from kairos.core.refusals import REFUSALS, Outcome

_OUTCOMES: dict[type, Outcome] = {
    Finished: "finished",
    Failed: "failed",
    Cancelled: "cancelled",
}
OF_CALLS: frozenset[type] = frozenset({Arrived, FirstToken, Finished, Failed, Cancelled, Bounced})


class CallTracker:
    """Tracker of calls by records; stores only the calls in flight."""

    def __init__(self) -> None:
        self._open: dict[str, CallRow] = {}

    def __len__(self) -> int:
        return len(self._open)

    def row(self, request_id: str) -> CallRow | None:
        """Return the present state of a call in flight; None for others."""
        return self._open.get(request_id)

    def observe(self, record: Record) -> list[CallRow]:
        """Process the next record, and return the calls that it ended."""
        ended: list[CallRow] = []
        event, at = record.event, record.at
        if type(event) is Arrived:
            request = event.request
            if request.id not in self._open:
                self._open[request.id] = CallRow(request)
        elif type(event) is FirstToken:
            row = self._open.get(event.request_id)
            if row is not None and row.first_token_at is None:
                row.first_token_at = at
        elif type(event) is Finished or type(event) is Failed or type(event) is Cancelled:
            self._record_end(event, at, ended)
        elif type(event) is Bounced:
            self._record_bounce(event.request_id)
        for command in record.commands:
            if isinstance(command, Dispatch):
                row = self._open.get(command.request_id)
                if row is not None:
                    row.dispatch, row.dispatched_at = command, at
            else:
                self._record_refusal(command, at, ended)
        return ended

    def _record_refusal(self, refusal: Refuse, at: int, ended: list[CallRow]) -> None:
        outcome = REFUSALS[refusal.reason].outcome
        row = self._close_row(refusal.request_id, outcome, at, ended)
        if row is not None:
            row.why = refusal.reason

    def _record_bounce(self, request_id: str) -> None:
        row = self._open.get(request_id)
        if row is not None and row.dispatch is not None:
            row.dispatch = row.dispatched_at = row.first_token_at = None

    def _record_end(
        self, fact: Finished | Failed | Cancelled, at: int, ended: list[CallRow]
    ) -> None:
        row = self._close_row(fact.request_id, _OUTCOMES[type(fact)], at, ended)
        if row is None:
            return
        if type(fact) is Finished:
            row.prompt_tokens = fact.prompt_tokens
            row.completion_tokens = fact.completion_tokens
            row.cached_tokens = fact.cached_tokens
            row.preemptions = fact.preemptions
            row.recomputed_tokens = fact.recomputed_tokens
        elif type(fact) is Failed:
            row.why, row.wasted_tokens = fact.reason, fact.wasted_tokens

    def _close_row(
        self, request_id: str, outcome: Outcome, at: int, ended: list[CallRow]
    ) -> CallRow | None:
        row = self._open.pop(request_id, None)
        if row is not None:
            row.outcome, row.ended_at = outcome, at
            ended.append(row)
        return row
