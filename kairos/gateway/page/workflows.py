"""Workflows: a list, and a single one with its time split and its calls explained.

The values are the JSON of `/ui/data/workflows` and `/ui/data/workflow`. Instants are µs since the
epoch (`_at`), durations seconds (`_s`).
"""

from collections.abc import Callable, Iterable
from heapq import nlargest
from itertools import pairwise
from typing import Literal

import msgspec

from kairos.core import (
    SECOND,
    CallRow,
    Clock,
    InvalidRequest,
    OpenedWorkflow,
    Orchestrator,
    WorkflowNotFound,
)
from kairos.observe import (
    Snapshot,
    WorkflowView,
    explain_call,
    explain_origin,
    workflow_snapshot,
    workflow_view,
)

WORKFLOWS_PAGE, CALLS_PAGE = 50, 100

# open: no end was reported; silent: taken as ended after a time without calls.
State = Literal["open", "ended", "silent", "cancelled"]
Order = Literal["longest", "newest"]
# An open workflow's activity. runs: at least one call is on an instance; waits: all its calls are
# queued; away: it has no call at the moment.
Doing = Literal["runs", "waits", "away"]


class TimeSplit(msgspec.Struct, frozen=True, kw_only=True):
    """Breakdown of time, in seconds."""

    answering_s: float = 0.0  # at least one call generates; all of it, where it is not streamed
    prompts_s: float = 0.0  # else: one's prompt is read, on its instance
    waiting_s: float = 0.0  # else: one waits in the queue
    elsewhere_s: float = 0.0  # else


class FollowedElsewhere(InvalidRequest):
    """Workflows are followed by another process of the pool."""

    status = 404
    code = "not_here"
    says = (
        "workflows are followed by another process of this pool, `kairos orchestrate`: use its "
        "page, or `kairos explain` with --url"
    )


class WorkflowQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Filter for workflows; None: any."""

    part: str | None = None  # of its id
    tenant: str | None = None
    app: str | None = None
    state: State | None = None
    least_s: float = 0.0  # that it has lasted
    order: Order = "longest"


class WorkflowRow(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    tenant: str
    app: str | None
    state: State
    doing: Doing | None  # null: it has ended
    started_at: int
    lasted_s: float
    calls: int
    split: TimeSplit


class WorkflowsView(msgspec.Struct, frozen=True, kw_only=True):
    """A page of the workflows that were found."""

    total: int
    remembered: int  # among which it was looked
    offset: int
    workflows: list[WorkflowRow]


class ExplainedWorkflow(msgspec.Struct, frozen=True, kw_only=True):
    """A workflow with a page of its calls, and their explanations."""

    at: int
    split: TimeSplit
    workflow: WorkflowView
    explained: dict[str, list[str]]  # by id


def find_workflows(
    workflows: Iterable[OpenedWorkflow], query: WorkflowQuery, offset: int, at: int
) -> WorkflowsView:
    """Return a page of the workflows that match.

    It only reads, so it may run in a thread: 0.1 s for 100,000. Concurrent changes may or may not
    be included.
    """
    remembered = [each for each in workflows if each.calls]
    found = [each for each in remembered if _matches(each, query, at)]
    until = offset + WORKFLOWS_PAGE
    if query.order == "longest":
        ordered = nlargest(until, found, key=lambda each: _lasted_us(each, at))
    else:
        ordered = nlargest(until, found, key=_started_at)
    return WorkflowsView(
        total=len(found),
        remembered=len(remembered),
        offset=offset,
        workflows=[_row(each, at) for each in ordered[offset:]],
    )


def _matches(workflow: OpenedWorkflow, query: WorkflowQuery, at: int) -> bool:
    tenant, workflow_id = workflow.key
    return (
        (query.tenant is None or tenant == query.tenant)
        and (query.part is None or query.part in workflow_id)
        and (query.app is None or workflow.calls[0].row.request.app == query.app)
        and (query.state is None or _state(workflow) == query.state)
        and (not query.least_s or _lasted_us(workflow, at) >= query.least_s * SECOND)
    )


def _state(workflow: OpenedWorkflow) -> State:
    if workflow.cancelled:
        return "cancelled"
    if workflow.ended_at is None:
        return "open"
    return "silent" if workflow.idle else "ended"


def _started_at(workflow: OpenedWorkflow) -> int:
    return workflow.calls[0].row.request.workflow_started_at


def _lasted_us(workflow: OpenedWorkflow, at: int) -> int:
    until = at if workflow.ended_at is None else workflow.ended_at
    return max(0, until - _started_at(workflow))


def _row(workflow: OpenedWorkflow, at: int) -> WorkflowRow:
    tenant, workflow_id = workflow.key
    rows = [call.row for call in workflow.calls]
    until = at if workflow.ended_at is None else workflow.ended_at
    return WorkflowRow(
        id=workflow_id,
        tenant=tenant,
        app=rows[0].request.app,
        state=_state(workflow),
        doing=_doing(workflow) if workflow.ended_at is None else None,
        started_at=_started_at(workflow),
        lasted_s=_lasted_us(workflow, at) / SECOND,
        calls=len(rows) + workflow.left_out,
        split=time_split(rows, _started_at(workflow), until),
    )


def _doing(workflow: OpenedWorkflow) -> Doing:
    in_flight = [call.row for call in workflow.calls if call.row.ended_at is None]
    if not in_flight:
        return "away"
    return "runs" if any(row.dispatched_at is not None for row in in_flight) else "waits"


def explain_workflow(seen: Snapshot, offset: int) -> ExplainedWorkflow:
    """Build the explained workflow. Pure; O(n log n) in the workflow's calls."""
    view = workflow_view(seen, offset, CALLS_PAGE)
    until = seen.at if seen.ended_at is None else seen.ended_at
    return ExplainedWorkflow(
        at=seen.at,
        split=time_split(seen.rows, view.started_at, until),
        workflow=view,
        explained={call.id: explain_call(call) + explain_origin(call) for call in view.calls},
    )


class Workflows:
    """Workflows that the orchestrator remembers: open, or ended recently."""

    def __init__(self, clock: Clock, followed: Callable[[], Orchestrator]) -> None:
        """Create it. `followed` raises where another process follows the workflows."""
        self._clock, self._followed = clock, followed

    def now(self) -> int:
        """Return the time in µs."""
        return self._clock.now()

    def remembered(self) -> tuple[list[OpenedWorkflow], int]:
        """Return all workflows, for `find`, and the time."""
        return self._followed().workflows(), self._clock.now()

    def snapshot(self, tenant: str, workflow_id: str) -> Snapshot:
        """Return a snapshot of one workflow. Raises WorkflowNotFound: It is not remembered."""
        followed = self._followed()
        workflow = followed.workflow(tenant, workflow_id)
        if workflow is None or not workflow.calls:
            raise WorkflowNotFound(workflow_id)
        return workflow_snapshot(workflow, self._clock.now(), followed.joins)


def time_split(rows: Iterable[CallRow], started_at: int, until: int) -> TimeSplit:
    """Return the breakdown for these calls of one workflow, up to `until`. O(n log n).

    Each instant counts for the most advanced activity of its calls: answering, else reading a
    prompt, else waiting, else nothing that Kairos sees (agents, tools, people). So the parts add up
    to the whole, however many of its calls ran at once. Not in the paper.
    """
    changes: list[tuple[int, int, int]] = []  # when, which part, by how much
    for row in rows:
        for part, stretch in enumerate(_call_stretches(row, until)):
            begins, ends = max(stretch[0], started_at), min(stretch[1], until)
            if begins < ends:
                changes += [(begins, part, 1), (ends, part, -1)]
    changes += [(started_at, 0, 0), (max(started_at, until), 0, 0)]
    changes.sort()
    spent, going = [0, 0, 0, 0], [0, 0, 0]
    for (at, part, by), (next_at, *_) in pairwise(changes):
        going[part] += by
        first = next((each for each in range(3) if going[each]), 3)
        spent[first] += next_at - at
    names = TimeSplit.__struct_fields__
    return TimeSplit(**{name: us / SECOND for name, us in zip(names, spent, strict=True)})


def _call_stretches(row: CallRow, until: int) -> tuple[tuple[int, int], ...]:
    """Return the intervals in which the call was answered, its prompt read, and it waited.

    An interval is empty if that never happened.
    """
    ended_at = until if row.ended_at is None else row.ended_at
    gone_at = ended_at if row.dispatched_at is None else row.dispatched_at
    answers_at = gone_at if row.first_token_at is None else row.first_token_at
    return (answers_at, ended_at), (gone_at, answers_at), (row.request.arrived_at, gone_at)
