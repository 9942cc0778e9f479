"""Views of workflows' calls and of learnt profiles, for clients.

The values here are the JSON of `GET /v1/workflows/{id}` and `GET /v1/agents`. Times are µs since
the epoch (`_at`), durations seconds (`_s`); unknown values are null.
"""

from collections.abc import Callable

import msgspec

from kairos.core import (
    SECOND,
    AgentProfile,
    AgentStatus,
    CallGraph,
    CallRow,
    Dispatch,
    Distribution,
    KnownJoins,
    LearntJoins,
    OpenedWorkflow,
    Orchestrator,
    Remaining,
    Source,
    WorkEstimates,
    percentile,
    remaining_work,
    span_of,
)

MAX_PARENTS = 100  # parents listed for a call: a guessed join may have thousands
_PERCENTS = (5, 10, 25, 50, 75, 90, 95, 99)


class DispatchView(msgspec.Struct, frozen=True, kw_only=True):
    """Dispatch of a call, with the reasons known at that time."""

    instance: str
    reason: str  # see `kairos.core.events.Reason`
    left_waiting: int  # other requests that stayed in its queue
    rank: float | None  # its agent's distance from having no work left, in seconds
    expected_remaining_s: float | None  # expected work of the workflow, from this call on
    tenants_waiting: int = 0  # number of other waiting tenants
    tenants_before: int = 0  # of these, tenants before it in the order, with nothing that fitted


class CallView(msgspec.Struct, frozen=True, kw_only=True):
    """Call of a workflow: its place in the graph, and the reasons for its dispatch."""

    id: str
    agent: str | None
    upstream: str | None  # declared or inferred
    # Sources of workflow_id, app, agent and upstream: declared, alias, route, trace, inferred, none
    sources: dict[str, Source]
    parents: tuple[str, ...]  # at most `MAX_PARENTS` of them
    parents_total: int
    ambiguous: bool  # several calls could be its parent, judged by their names
    missing: tuple[str, ...]  # declared parents that match no known call
    # The calls that it led to, in order; calls of one stage ran in parallel.
    stages: list[list[str]]
    attempts: int
    outcome: str | None  # null: it waits or runs
    why: str | None  # why it failed, or was refused or dropped (`kairos.core.events.Refusal`)
    arrived_at: int
    dispatched_at: int | None
    first_token_at: int | None
    ended_at: int | None
    wait_s: float  # so far, while it waits
    execution_s: float | None
    dispatch: DispatchView | None  # null: it was not dispatched
    remaining_s: float | None  # actual remaining work; null until the workflow has ended
    prompt_tokens: int | None
    completion_tokens: int | None
    cached_tokens: int | None


class WorkflowView(msgspec.Struct, frozen=True, kw_only=True):
    """Workflow as far as it went, with one page of its calls, in order of arrival."""

    id: str
    object: str = "workflow"
    tenant: str
    app: str | None
    started_at: int
    ended_at: int | None
    ended_by: str | None  # told: its end was reported; idle: it ended by silence
    stages: list[list[str]]  # the calls without a known parent, in order
    calls_total: int
    calls_left_out: int  # calls beyond the maximum stored per workflow
    calls: list[CallView]


class LearntView(msgspec.Struct, frozen=True, kw_only=True):
    """Learnt distributions, as mean and percentiles."""

    call_s: dict[str, float]  # execution latency of one call
    completion_tokens: dict[str, float] | None  # null: not reported by any engine
    remaining_s: dict[str, float]  # latency of the workflow from a call on, itself included
    remaining_stages: float  # mean number of calls on the critical path, the call included


class AgentView(msgspec.Struct, frozen=True, kw_only=True):
    """Learnt profile of an agent, or of all agents of an app together if `agent` is `*`."""

    app: str
    agent: str
    samples: int
    converged: bool
    distance: float | None  # Wasserstein distance of the last two distributions, over the mean
    checks: int
    reopened: int  # number of times its behaviour changed
    censored: int  # calls that failed or were cancelled
    pooled: int  # calls of agents that are not tracked by name
    rank: float | None  # distance from having no work left, in seconds
    learnt: LearntView | None  # null: nothing published yet


class AgentsView(msgspec.Struct, frozen=True, kw_only=True):
    """Page of a tenant's agents, by app and name."""

    object: str = "list"
    kendall_tau: float | None  # correlation of all ranks with mean remaining work
    agents_total: int
    data: list[AgentView]


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """Copy of a workflow, so that it can be processed off the event loop."""

    key: tuple[str, str]
    rows: list[CallRow]  # last attempt of every call, in order of arrival
    left_out: int
    at: int
    ended_at: int | None
    idle: bool
    known: KnownJoins | None = None  # learnt joins of its app, if any


def workflow_snapshot(
    workflow: OpenedWorkflow, at: int, joins: LearntJoins | None = None
) -> Snapshot:
    last = {call.row.request.id: call.row for call in workflow.calls}
    return Snapshot(
        key=workflow.key,
        rows=[_copied(row) for row in last.values()],
        left_out=workflow.left_out,
        at=at,
        ended_at=workflow.ended_at,
        idle=workflow.idle,
        known=joins.of(workflow.app) if joins is not None and workflow.calls else None,
    )


def _copied(row: CallRow) -> CallRow:
    """Return a copy of the row, or the row itself if the call has ended and so is final."""
    return row if row.ended_at is not None else msgspec.structs.replace(row)


def workflow_view(seen: Snapshot, offset: int, limit: int) -> WorkflowView:
    """Return a page of the workflow, in O(n log n) of all its calls.

    A call in flight counts as a span up to the time of the snapshot, so that it has a place in the
    graph.
    """
    graph = CallGraph(known=seen.known)
    for row in seen.rows:
        ended_at = row.ended_at if row.ended_at is not None else seen.at
        graph.add(span_of(msgspec.structs.replace(row, ended_at=ended_at)))
    rest = remaining_work(graph) if seen.ended_at is not None else {}
    tenant, workflow_id = seen.key
    first = seen.rows[0].request
    ended_by = None if seen.ended_at is None else ("idle" if seen.idle else "told")
    return WorkflowView(
        id=workflow_id,
        tenant=tenant,
        app=first.app,
        started_at=first.workflow_started_at,
        ended_at=seen.ended_at,
        ended_by=ended_by,
        stages=graph.stages(None),
        calls_total=len(seen.rows),
        calls_left_out=seen.left_out,
        calls=[
            _call_view(row, graph, rest.get(row.request.id), seen.at)
            for row in seen.rows[offset : offset + limit]
        ],
    )


def _call_view(row: CallRow, graph: CallGraph, rest: Remaining | None, at: int) -> CallView:
    request = row.request
    node = graph.nodes[request.id]
    execution_us = None
    if row.dispatched_at is not None and row.ended_at is not None:
        execution_us = row.ended_at - row.dispatched_at
    gone_at = row.dispatched_at if row.dispatched_at is not None else row.ended_at
    return CallView(
        id=request.id,
        agent=request.agent,
        upstream=request.upstream,
        sources=msgspec.structs.asdict(request.sources),
        parents=node.parents[:MAX_PARENTS],
        parents_total=len(node.parents),
        ambiguous=node.ambiguous,
        missing=node.missing,
        stages=graph.stages(request.id),
        attempts=max(node.attempts, request.attempt),
        outcome=row.outcome,
        why=row.why,
        arrived_at=request.arrived_at,
        dispatched_at=row.dispatched_at,
        first_token_at=row.first_token_at,
        ended_at=row.ended_at,
        wait_s=((at if gone_at is None else gone_at) - request.arrived_at) / SECOND,
        execution_s=_in_seconds(execution_us),
        dispatch=_dispatch_view(row.dispatch) if row.dispatch is not None else None,
        remaining_s=rest.work_us / SECOND if rest is not None and not rest.censored else None,
        prompt_tokens=row.prompt_tokens,
        completion_tokens=row.completion_tokens,
        cached_tokens=row.cached_tokens,
    )


def _dispatch_view(dispatch: Dispatch) -> DispatchView:
    return DispatchView(
        instance=dispatch.instance_id,
        reason=dispatch.reason,
        left_waiting=dispatch.waiting,
        rank=_in_seconds(dispatch.rank),
        expected_remaining_s=_in_seconds(dispatch.remaining_us),
        tenants_waiting=dispatch.tenants,
        tenants_before=dispatch.tenants_before,
    )


def agents_view(
    orchestrator: Orchestrator, estimates: WorkEstimates, tenant: str, offset: int, limit: int
) -> Callable[[], AgentsView]:
    """Return a function that builds a page of a tenant's agents.

    It reads no state any more, and may run in a thread: percentiles of 1,000 agents take 15 ms.
    `estimates` are the published ones.
    """
    statuses, tau = orchestrator.profiles.status(tenant), estimates.kendall_tau
    page = [
        (each, *estimates.published((tenant, each.app, each.agent)))
        for each in statuses[offset : offset + limit]
    ]
    return lambda: AgentsView(
        kendall_tau=tau, agents_total=len(statuses), data=[_agent_view(*each) for each in page]
    )


def _agent_view(status: AgentStatus, profile: AgentProfile | None, rank: float | None) -> AgentView:
    return AgentView(
        **msgspec.structs.asdict(status),
        rank=_in_seconds(rank),
        learnt=_learnt_view(profile) if profile is not None else None,
    )


def _learnt_view(profile: AgentProfile) -> LearntView:
    tokens = profile.completion_tokens
    return LearntView(
        call_s=_percentiles(profile.call_us, SECOND),
        completion_tokens=_percentiles(tokens, 1) if tokens is not None else None,
        remaining_s=_percentiles(profile.remaining_us, SECOND),
        remaining_stages=profile.remaining_stages,
    )


def _percentiles(distribution: Distribution, unit: int) -> dict[str, float]:
    parts = distribution.quantiles
    percentiles = {f"p{percent}": percentile(parts, percent) / unit for percent in _PERCENTS}
    return {"mean": distribution.mean / unit, **percentiles}


def _in_seconds(duration_us: float | None) -> float | None:
    return None if duration_us is None else duration_us / SECOND
