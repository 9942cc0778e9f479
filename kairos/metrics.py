"""Facts -> figures: what became of every call, and the metrics record of a run.

The record is computed from the same facts for a live run and a simulated one. Per workflow:
end-to-end seconds from the user's task to its final reply (`WorkflowEnded`, else the last call's
end), and the same divided by the tokens that its calls generated (program-level token latency;
kairos paper, 7.1). `queued_share` is the time that calls waited over the workflows' end-to-end
time. A figure whose facts were never told (an engine that reports no cached tokens) is None.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, Literal

import msgspec

from kairos.events import (
    Arrived,
    Cancelled,
    Dispatch,
    Failed,
    Finished,
    FirstToken,
    Record,
    WorkflowEnded,
)
from kairos.model import SECOND, Request

Outcome = Literal["finished", "failed", "cancelled", "refused"]
WorkflowKey = tuple[str, str]  # tenant, workflow id


class CallRow(msgspec.Struct):
    """One call, followed to its end. Instants in µs; None: did not happen, or was not told."""

    request: Request
    instance_id: str | None = None
    dispatched_at: int | None = None
    first_token_at: int | None = None
    ended_at: int | None = None
    outcome: Outcome | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None

    @property
    def queued_us(self) -> int:
        """Time until it was dispatched, or until it ended if it never was."""
        until = self.dispatched_at if self.dispatched_at is not None else self.ended_at
        return (until or self.request.arrived_at) - self.request.arrived_at


class CallTracker:
    """Follows records; holds only the calls in flight."""

    def __init__(self) -> None:
        self._open: dict[str, CallRow] = {}

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
                row.instance_id, row.dispatched_at = command.instance_id, record.at
        return ended

    def _end(
        self, request_id: str, outcome: Outcome, at: int, ended: list[CallRow]
    ) -> CallRow | None:
        row = self._open.pop(request_id, None)
        if row is not None:
            row.outcome, row.ended_at = outcome, at
            ended.append(row)
        return row


class RunMetrics:
    """Keeps every call of a run that ends, to sum it up: for demos and simulations."""

    def __init__(self) -> None:
        self.rows: list[CallRow] = []
        self.ended: dict[WorkflowKey, int] = {}
        self._tracker = CallTracker()

    def __call__(self, record: Record) -> None:
        self.rows += self._tracker.observe(record)
        if isinstance(record.event, WorkflowEnded):
            self.ended.setdefault((record.event.tenant, record.event.workflow_id), record.at)

    def record(self) -> dict[str, Any]:
        """The metrics record, whole and per app."""
        by_app: dict[str, list[CallRow]] = defaultdict(list)
        for row in self.rows:
            by_app[row.request.app or "unknown"].append(row)
        apps = {app: _summarise(rows, self.ended) for app, rows in sorted(by_app.items())}
        return {**_summarise(self.rows, self.ended), "apps": apps}


def _summarise(rows: Sequence[CallRow], ended: dict[WorkflowKey, int]) -> dict[str, Any]:
    workflows: dict[WorkflowKey, list[CallRow]] = defaultdict(list)
    for row in rows:
        workflows[row.request.tenant, row.request.workflow_id].append(row)
    e2e_us = {key: _end_to_end_us(calls, ended.get(key)) for key, calls in workflows.items()}
    tokens = {key: sum(c.completion_tokens or 0 for c in calls) for key, calls in workflows.items()}
    total_us = sum(e2e_us.values())
    prompt = sum(r.prompt_tokens or 0 for r in rows if r.cached_tokens is not None)
    cached = [r.cached_tokens for r in rows if r.cached_tokens is not None]
    return {
        "workflows": len(workflows),
        "calls": len(rows),
        "e2e_s": spread(us / SECOND for us in e2e_us.values()),
        "s_per_token": spread(e2e_us[key] / SECOND / tokens[key] for key in tokens if tokens[key]),
        "ttft_s": spread(
            (r.first_token_at - r.request.arrived_at) / SECOND
            for r in rows
            if r.first_token_at is not None
        ),
        "queued_share": sum(r.queued_us for r in rows) / total_us if total_us else None,
        "preemptions_per_call": None,
        "recomputed_token_share": None,
        "cached_prompt_share": sum(cached) / prompt if prompt else None,
    }


def _end_to_end_us(calls: Iterable[CallRow], ended_at: int | None) -> int:
    calls = list(calls)
    started_at = min(call.request.workflow_started_at for call in calls)
    if ended_at is None:
        ended_at = max(call.ended_at or 0 for call in calls)
    return ended_at - started_at


def spread(values: Iterable[float]) -> dict[str, float | None]:
    """Mean and percentiles, interpolated linearly; all None where there is no value."""
    ordered = sorted(values)
    if not ordered:
        return dict.fromkeys(("mean", "p50", "p90", "p95", "p99"))
    quantiles: dict[str, float | None] = {
        f"p{percent}": percentile(ordered, percent) for percent in (50, 90, 95, 99)
    }
    return {"mean": sum(ordered) / len(ordered), **quantiles}


def percentile(ordered: Sequence[float], percent: int) -> float:
    """Between the two nearest of ascending values, by linear interpolation."""
    below, part = divmod((len(ordered) - 1) * percent, 100)
    above = min(below + 1, len(ordered) - 1)
    return (ordered[below] * (100 - part) + ordered[above] * part) / 100
