"""Facts -> calls: what became of every call."""

from typing import Literal

import msgspec

from kairos.events import (
    Arrived,
    Cancelled,
    Dispatch,
    Failed,
    Finished,
    FirstToken,
    Record,
)
from kairos.model import Request

Outcome = Literal["finished", "failed", "cancelled", "refused"]


class CallRow(msgspec.Struct):
    """One call, followed to its end. Instants in µs; None: did not happen, or was not told."""

    request: Request
    dispatch: Dispatch | None = None
    dispatched_at: int | None = None
    first_token_at: int | None = None
    ended_at: int | None = None
    outcome: Outcome | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None

    @property
    def instance_id(self) -> str | None:
        return self.dispatch.instance_id if self.dispatch is not None else None

    @property
    def queued_us(self) -> int:
        """Time until it was dispatched, or until it ended if it never was."""
        until = self.dispatched_at if self.dispatched_at is not None else self.ended_at
        return (until or self.request.arrived_at) - self.request.arrived_at


class CallTracker:
    """Follows records; holds only the calls in flight."""

    def __init__(self) -> None:
        self._open: dict[str, CallRow] = {}

    def row(self, request_id: str) -> CallRow | None:
        """The call as it stands, if it is in flight."""
        return self._open.get(request_id)

    def observe(self, record: Record) -> list[CallRow]:
        """Take the next record; return the calls that it ended."""
        ended: list[CallRow] = []
        match record.event:
            case Arrived(request=request):
                self._open.setdefault(request.id, CallRow(request))
            case FirstToken(request_id=request_id):
                row = self._open.get(request_id)
                if row is not None and row.first_token_at is None:
                    row.first_token_at = record.at
            case Finished() as fact:
                row = self._end(fact.request_id, "finished", record.at, ended)
                if row is not None:
                    row.prompt_tokens = fact.prompt_tokens
                    row.completion_tokens = fact.completion_tokens
                    row.cached_tokens = fact.cached_tokens
            case Failed() | Cancelled() as fact:
                outcome: Outcome = "failed" if isinstance(fact, Failed) else "cancelled"
                self._end(fact.request_id, outcome, record.at, ended)
        for command in record.commands:
            if not isinstance(command, Dispatch):
                self._end(command.request_id, "refused", record.at, ended)
            elif command.request_id in self._open:
                row = self._open[command.request_id]
                row.dispatch, row.dispatched_at = command, record.at
        return ended

    def _end(
        self, request_id: str, outcome: Outcome, at: int, ended: list[CallRow]
    ) -> CallRow | None:
        row = self._open.pop(request_id, None)
        if row is not None:
            row.outcome, row.ended_at = outcome, at
            ended.append(row)
        return row
