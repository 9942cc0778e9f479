"""Follow every workflow from its first call to its end, and learn from ended workflows.

The input is the records that the log keeps, so the same code learns in a live service, from a log,
and in simulation. A workflow ends when its end is reported (`WorkflowEnded`), or after a long
enough silence. Then, off the request path, its calls become a graph (`graph.py`), the graph yields
the remaining work after each call (`remaining.py`), and that is learnt (`profiles.py`).
"""

from collections.abc import Iterable

from kairos.core.call_row import CallRow
from kairos.core.call_tracker import OF_CALLS, CallTracker
from kairos.core.events import Arrived, Bounced, Dispatch, Record, WorkflowEnded
from kairos.core.model import Request
from kairos.core.orchestrator.kept_workflows import KeptWorkflows, LearningQueue
from kairos.core.orchestrator.learnt_joins import LearntJoins, SeenJoin
from kairos.core.orchestrator.open_workflows import OPEN_CALLS, OpenWorkflow, WorkflowCall
from kairos.core.orchestrator.profiles import CallSample, Profiles
from kairos.core.orchestrator.workflow import MAX_CALLS, Lesson, OpenedWorkflow
from kairos.core.workflow_tracker import (
    IDLE_US,
    MAX_WORKFLOWS,
    WorkflowKey,
    WorkflowTracker,
    workflow_key,
)

# Memory for the calls of all tenants' open workflows: 100,000 to 350,000 calls.
MAX_OPEN_BYTES = 512 << 20
MAX_TO_LEARN = 10_000  # ended workflows waiting to be learnt from
MAX_TO_LEARN_BYTES = 128 << 20  # of these together
MAX_ENDED = 1_000  # ended workflows kept for inspection
MAX_ENDED_BYTES = 64 << 20  # of these together
# Other facts (instances, progress, time) do not concern the call graph.
_OF_WORKFLOWS = OF_CALLS | {WorkflowEnded}


class Orchestrator:
    """Owner of the open workflows and of what was learnt.

    O(log n) amortised per record. Bounded: beyond `max_workflows`, the tenant with most open
    workflows loses the one idle for longest. Evicted workflows are not learnt from, since their end
    is unknown, nor are workflows that began before the first record.
    """

    def __init__(
        self,
        profiles: Profiles | None = None,
        *,
        max_workflows: int = MAX_WORKFLOWS,
        idle_us: int = IDLE_US,
        skew_us: int = 0,
        began_at: int | None = None,
    ) -> None:
        """Create an orchestrator.

        Args:
            profiles: what was learnt so far; None: start empty.
            max_workflows: maximum number of open workflows.
            idle_us: silence after which a workflow has ended.
            skew_us: maximum clock difference between hosts that report.
            began_at: time from which records were followed, if earlier than the first record that
                arrives here.
        """
        self.profiles = profiles if profiles is not None else Profiles()
        self.evicted = 0  # workflows evicted while open
        self.expired = 0  # workflows ended by silence
        self.unlearnt = 0  # workflows dropped because too many waited to be learnt from
        self.skew_us = skew_us
        self.joins = LearntJoins(skew_us=skew_us)
        self._idle_us = idle_us
        self._tracker = CallTracker()
        self._positions = WorkflowTracker(max_workflows=max_workflows, idle_us=idle_us)
        self._open = KeptWorkflows(max_workflows, MAX_OPEN_BYTES)
        self._ended = KeptWorkflows(MAX_ENDED, MAX_ENDED_BYTES)  # as they ended
        self.began_at = began_at
        self._to_learn = LearningQueue(MAX_TO_LEARN, MAX_TO_LEARN_BYTES)
        self._none_idle_before = 0

    def __len__(self) -> int:
        """Return the number of open workflows."""
        return len(self._open)

    def observe(self, record: Record) -> None:
        """Process one record. A repeated fact has no further effect."""
        event, at = record.event, record.at
        if self.began_at is None:
            self.began_at = at
        self.expire(at)
        if type(event) not in _OF_WORKFLOWS and not record.commands:
            return
        begins = type(event) is Arrived and self._tracker.row(event.request.id) is None
        ended = self._tracker.observe(record)
        if type(event) is Arrived:
            if begins:
                self._add_call(event.request, at, ended)
        elif type(event) is Bounced:
            self._positions.record_bounce(event.request_id, at)
        for command in record.commands:
            if isinstance(command, Dispatch):
                self._positions.record_dispatch(command.request_id, at)
        for row in ended:
            self._end_call(row, at)
        if type(event) is WorkflowEnded:
            key = event.tenant, event.workflow_id
            self._end_workflow(key, at, cancelled=event.cancelled)

    def expire(self, at: int) -> None:
        """End the workflows that have been silent for too long."""
        if at < self._none_idle_before:
            return
        since = at - self._idle_us
        self._none_idle_before = at + self._idle_us
        while self._open:
            workflow = self._open.oldest()
            if workflow.seen_at > since:
                self._none_idle_before = workflow.seen_at + self._idle_us
                return
            if workflow.in_flight:
                self._touch(workflow, at)  # a long call is not silence
                continue
            workflow.ended_at, workflow.idle = workflow.seen_at, True
            self.expired += 1
            self._close(workflow)

    @property
    def to_learn(self) -> int:
        """Return the number of ended workflows that wait to be taken."""
        return len(self._to_learn)

    def take_ended(self) -> list[OpenedWorkflow]:
        """Return and clear the ended workflows that wait to be learnt from."""
        return self._to_learn.take_all()

    def learn(self, lessons: Iterable[Lesson]) -> None:
        """Learn from lessons (`OpenedWorkflow.lessons`). Takes 10 µs a call."""
        for lesson in lessons:
            if isinstance(lesson, CallSample):
                self.profiles.add(lesson)
            elif isinstance(lesson, SeenJoin):
                self.joins.add(lesson)
            else:
                self.profiles.censor(lesson)

    def still_open(self) -> list[OpenWorkflow]:
        """Return a sample of the open workflows as they stand. Takes 1 µs a call."""
        return [
            each.standing(self._positions.attained(each.key)[0])
            for each in self._open.some(OPEN_CALLS)
        ]

    def workflows(self) -> list[OpenedWorkflow]:
        """Return all workflows in memory, recently ended ones included. Takes 10 ns each."""
        return self._open.all() + self._ended.all()

    def open_workflow(self, key: WorkflowKey) -> OpenedWorkflow | None:
        return self._open.get(key)

    def workflow(self, tenant: str, workflow_id: str) -> OpenedWorkflow | None:
        """Return an open or recently ended workflow; None if it is not in memory."""
        key = tenant, workflow_id
        return self._open.get(key) or self._ended.get(key)

    def _add_call(self, request: Request, at: int, ended: list[CallRow]) -> None:
        """Record a new call. `ended` by the same record may be calls that were refused at once."""
        row = self._tracker.row(request.id)
        if row is None:  # refused at once
            row = next(each for each in ended if each.request.id == request.id)
        key = workflow_key(request)
        workflow = self._open.get(key)
        if workflow is None and self._is_of_ended(key, request.id):
            return  # a task repeated after its workflow ended: the call is known
        if workflow is None:
            workflow = OpenedWorkflow(key, at)
            assert self.began_at is not None
            workflow.is_whole = request.workflow_started_at >= self.began_at
            self.evicted += self._open.put(workflow)
        self._touch(workflow, at)
        workflow.in_flight.add(request.id)
        position = self._positions.record_arrival(request, at)
        if len(workflow.calls) < MAX_CALLS:
            size_bytes = workflow.add(WorkflowCall(row, position))
            self.evicted += self._open.count_calls(workflow, 1, size_bytes)
        else:
            workflow.left_out += 1

    def _is_of_ended(self, key: WorkflowKey, request_id: str) -> bool:
        ended = self._ended.get(key)
        return ended is not None and any(call.row.request.id == request_id for call in ended.calls)

    def _end_call(self, row: CallRow, at: int) -> None:
        self._positions.record_call_end(row.request.id, at, row.completion_tokens)
        workflow = self._open.get(workflow_key(row.request))
        if workflow is None or row.request.id not in workflow.in_flight:
            return  # the workflow was evicted
        self._touch(workflow, at)
        workflow.in_flight.discard(row.request.id)
        if workflow.ended_at is not None and not workflow.in_flight:
            self._close(workflow)

    def _end_workflow(self, key: WorkflowKey, at: int, *, cancelled: bool) -> None:
        workflow = self._open.get(key)
        if workflow is None or workflow.ended_at is not None:
            return
        workflow.ended_at, workflow.cancelled = at, cancelled
        if not workflow.in_flight:  # else when its last call ends
            self._close(workflow)

    def _touch(self, workflow: OpenedWorkflow, at: int) -> None:
        workflow.seen_at = at
        key = workflow.key
        self._open.touch(key[0], key)

    def _close(self, workflow: OpenedWorkflow) -> None:
        self._open.remove(workflow.key)
        self._positions.end_workflow(workflow.key)
        self.unlearnt += not self._to_learn.add(workflow)
        self._ended.put(workflow)
