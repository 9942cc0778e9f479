"""Metrics record of a run, computed from its facts.

It is the same for live and simulated runs. Per workflow: end-to-end seconds from the user's task to
its final reply (`WorkflowEnded`, else the last call's end), and the same divided by the tokens that
its calls generated (program-level token latency; kairos paper, 7.1). `queued_share` is the calls'
waiting time over the workflows' end-to-end time. A figure without any reported facts (an engine
that reports no cached tokens) has the value None.

The record also has `wasted_tokens`, which engines generated or computed in vain, and, if the
duration of workflows running alone is known, their `slowdown` relative to it: a spread with the
`worst`.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from kairos.core.call_row import CallRow
from kairos.core.call_tracker import CallTracker
from kairos.core.events import Record, WorkflowEnded
from kairos.core.model import SECOND
from kairos.core.workflow_tracker import WorkflowKey, workflow_key


class RunMetrics:
    """Collector of all ended calls of a run, for demos and simulations."""

    def __init__(self) -> None:
        self.rows: list[CallRow] = []
        self.ended: dict[WorkflowKey, int] = {}
        self._tracker = CallTracker()

    def __call__(self, record: Record) -> None:
        self.rows += self._tracker.observe(record)
        if type(record.event) is WorkflowEnded:
            self.ended.setdefault((record.event.tenant, record.event.workflow_id), record.at)

    def drop_open(self) -> None:
        """Drop the calls of workflows without a reported end.

        In an aborted run their durations so far mean nothing.
        """
        self.rows = [row for row in self.rows if workflow_key(row.request) in self.ended]

    def record(
        self,
        alone_us: Mapping[WorkflowKey, int] | None = None,
        failed: Collection[WorkflowKey] = (),
    ) -> dict[str, Any]:
        """Return the metrics record, in total and per app.

        Args:
            alone_us: duration of each workflow with an engine to itself; workflows that are not in
                it have no slowdown.
            failed: workflows without a final reply, and so without an end-to-end time, which would
                be too short; their calls count.
        """
        by_app: dict[str, list[CallRow]] = defaultdict(list)
        for row in self.rows:
            by_app[row.request.app or "unknown"].append(row)
        apps = {
            app: self._summarise(rows, alone_us, failed) for app, rows in sorted(by_app.items())
        }
        return {**self._summarise(self.rows, alone_us, failed), "apps": apps}

    def _summarise(
        self,
        rows: Sequence[CallRow],
        alone_us: Mapping[WorkflowKey, int] | None,
        failed: Collection[WorkflowKey],
    ) -> dict[str, Any]:
        well = [row for row in rows if workflow_key(row.request) not in failed]
        e2e_us = _end_to_end_us(well, self.ended)
        figures = {
            "workflows": len(e2e_us),
            "calls": len(rows),
            **_of_workflows(well, e2e_us),
            **_of_calls(rows),
        }
        if alone_us is not None:
            figures["slowdown"] = slowdown(e2e_us, alone_us)
        return figures


def _end_to_end_us(
    rows: Iterable[CallRow], ended: Mapping[WorkflowKey, int]
) -> dict[WorkflowKey, int]:
    started_at: dict[WorkflowKey, int] = {}
    ended_at: dict[WorkflowKey, int] = {}
    for row in rows:
        key, request = workflow_key(row.request), row.request
        started_at[key] = min(
            started_at.get(key, request.workflow_started_at), request.workflow_started_at
        )
        ended_at[key] = max(ended_at.get(key, 0), row.ended_at or 0)
    return {key: ended.get(key, ended_at[key]) - at for key, at in started_at.items()}


def _of_workflows(rows: Sequence[CallRow], e2e_us: Mapping[WorkflowKey, int]) -> dict[str, Any]:
    tokens: dict[WorkflowKey, int] = dict.fromkeys(e2e_us, 0)
    for row in rows:
        tokens[workflow_key(row.request)] += row.completion_tokens or 0
    return {
        "e2e_s": spread(us / SECOND for us in e2e_us.values()),
        "s_per_token": spread(e2e_us[key] / SECOND / tokens[key] for key in tokens if tokens[key]),
        "queued_share": _queued_share(rows, sum(e2e_us.values())),
    }


def _of_calls(rows: Sequence[CallRow]) -> dict[str, Any]:
    prompt = sum(r.prompt_tokens or 0 for r in rows if r.cached_tokens is not None)
    cached = [r.cached_tokens for r in rows if r.cached_tokens is not None]
    preempted = [r.preemptions for r in rows if r.preemptions is not None]
    return {
        "ttft_s": spread(
            (r.first_token_at - r.request.arrived_at) / SECOND
            for r in rows
            if r.first_token_at is not None
        ),
        "preemptions_per_call": sum(preempted) / len(preempted) if preempted else None,
        "recomputed_token_share": _recomputed_share(rows),
        "cached_prompt_share": sum(cached) / prompt if prompt else None,
        "wasted_tokens": wasted_tokens(rows),
    }


def _queued_share(rows: Sequence[CallRow], total_us: int) -> float | None:
    """Return the share of waiting; None if no end of a wait was reported, as for a client."""
    told = any(row.dispatched_at is not None or row.outcome == "refused" for row in rows)
    return sum(row.queued_us for row in rows) / total_us if told and total_us else None


def _recomputed_share(rows: Iterable[CallRow]) -> float | None:
    """Return the share of recomputed tokens among uncached prompt and answer tokens."""
    computed = recomputed = 0
    for row in rows:
        if row.recomputed_tokens is not None:
            new = (row.prompt_tokens or 0) - (row.cached_tokens or 0) + (row.completion_tokens or 0)
            computed += new + row.recomputed_tokens
            recomputed += row.recomputed_tokens
    return recomputed / computed if computed else None


def wasted_tokens(rows: Iterable[CallRow]) -> int | None:
    """Return tokens recomputed after preemptions or generated for failed calls.

    As far as reported; None if they never were.
    """
    told = [tokens for row in rows for tokens in (row.recomputed_tokens, row.wasted_tokens)]
    known = [tokens for tokens in told if tokens is not None]
    return sum(known) if known else None


def slowdown(
    e2e_us: Mapping[WorkflowKey, int], alone_us: Mapping[WorkflowKey, int]
) -> dict[str, float | None]:
    """Return the spread of the workflows' durations relative to running alone (1: as if alone)."""
    times = [us / alone_us[key] for key, us in e2e_us.items() if key in alone_us]
    return {**spread(times), "worst": max(times, default=None)}


def compare_metrics(records: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """Return the metrics records by name, and for two records the ratio of their spreads.

    A ratio below 1 means that the first is faster; None: the divisor is missing or 0.
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


def spread(values: Iterable[float]) -> dict[str, float | None]:
    """Return mean and percentiles, interpolated linearly; all None without values."""
    ordered = sorted(values)
    if not ordered:
        return dict.fromkeys(("mean", "p50", "p90", "p95", "p99"))
    quantiles: dict[str, float | None] = {
        f"p{percent}": percentile(ordered, percent) for percent in (50, 90, 95, 99)
    }
    return {"mean": sum(ordered) / len(ordered), **quantiles}


def percentile(ordered: Sequence[float], percent: int) -> float:
    """Return the percentile of ascending values, interpolated linearly."""
    below, part = divmod((len(ordered) - 1) * percent, 100)
    above = min(below + 1, len(ordered) - 1)
    return (ordered[below] * (100 - part) + ordered[above] * part) / 100
