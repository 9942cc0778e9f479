"""Facts -> figures: the metrics record of a run.

The record is computed from the same facts for a live run and a simulated one. Per workflow:
end-to-end seconds from the user's task to its final reply (`WorkflowEnded`, else the last call's
end), and the same divided by the tokens that its calls generated (program-level token latency;
kairos paper, 7.1). `queued_share` is the time that calls waited over the workflows' end-to-end
time. A figure whose facts were never told (an engine that reports no cached tokens) is None.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from kairos.calls import CallRow, CallTracker
from kairos.events import Record, WorkflowEnded
from kairos.model import SECOND
from kairos.position import WorkflowKey


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


def comparison(records: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """The metrics records by name, and how many times the second's spreads the first's are: below 1
    the first is quicker. There is no ratio (empty) but of two records, and none (None) to nothing.
    """
    ratio = _ratio(*records.values()) if len(records) == 2 else {}
    return {"runs": {**records}, "ratio": ratio}


def _ratio(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    ratio: dict[str, Any] = {
        name: {key: _over(value, second[name][key]) for key, value in first[name].items()}
        for name in ("e2e_s", "s_per_token", "ttft_s")
    }
    if "apps" in first:
        both = [app for app in first["apps"] if app in second["apps"]]
        ratio["apps"] = {app: _ratio(first["apps"][app], second["apps"][app]) for app in both}
    return ratio


def _over(value: float | None, by: float | None) -> float | None:
    return value / by if value is not None and by else None


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
