"""Follows every workflow from its first call to its end, and learns from those that ended.

Records in: the same that the log keeps, so the same lines learn in a live service, from a log, and
in simulation. A workflow ends when its final reply is told (`WorkflowEnded`), or when nothing has
been heard of it for long enough. Then, off the request path, its calls become a graph (`graph.py`),
the graph says what remained after each call (`remaining.py`), and that is what is learnt
(`profiles.py`).
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

# What the calls of all tenants' open workflows take: 100,000 to 350,000 calls.
MAX_OPEN_BYTES = 512 << 20
MAX_TO_LEARN = 10_000  # workflows that have ended and were not learnt from yet
MAX_TO_LEARN_BYTES = 128 << 20  # of all those together
MAX_ENDED = 1_000  # workflows kept to look at after they ended
MAX_ENDED_BYTES = 64 << 20  # of all those together
# Facts of instances, progress and time say nothing of who called whom, and of when.
_OF_WORKFLOWS = OF_CALLS | {WorkflowEnded}


class Orchestrator:
    """Owns the open workflows and what was learnt.

    O(log n) amortised per record. Bounded: beyond `max_workflows` the longest idle of the tenant
    that has most is evicted and not learnt from, since its end is not known; nor is one that began
    before the first record.
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
        """`skew_us`: by how much the clocks of hosts that report may disagree. `began_at`: when
        records began to be followed, if that was before the first that will come here."""
        self.profiles = profiles if profiles is not None else Profiles()
        self.evicted = 0  # workflows that were open when they had to make room
        self.expired = 0  # workflows that ended by falling silent
        self.unlearnt = 0  # workflows that ended while too many waited to be learnt from
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
        """Open workflows."""
        return len(self._open)

    def observe(self, record: Record) -> None:
        """Take in one record. A fact that is told twice changes nothing the second time."""
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
                self._arrived(event.request, at, ended)
        elif type(event) is Bounced:
            self._positions.bounced(event.request_id, at)
        for command in record.commands:
            if isinstance(command, Dispatch):
                self._positions.dispatched(command.request_id, at)
        for row in ended:
            self._call_ended(row, at)
        if type(event) is WorkflowEnded:
            key = event.tenant, event.workflow_id
            self._workflow_ended(key, at, cancelled=event.cancelled)

    def expire(self, at: int) -> None:
        """End the workflows of which nothing has been heard for too long."""
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
                self._touch(workflow, at)  # a call that takes long is no silence
                continue
            workflow.ended_at, workflow.idle = workflow.seen_at, True
            self.expired += 1
            self._close(workflow)

    @property
    def to_learn(self) -> int:
        """Workflows that have ended and wait to be taken."""
        return len(self._to_learn)

    def take_ended(self) -> list[OpenedWorkflow]:
        """The workflows that have ended since it was last asked, to be learnt from."""
        return self._to_learn.take()

    def learn(self, lessons: Iterable[Lesson]) -> None:
        """Take in what they teach (`OpenedWorkflow.lessons`). 10 µs a call."""
        for lesson in lessons:
            if isinstance(lesson, CallSample):
                self.profiles.add(lesson)
            elif isinstance(lesson, SeenJoin):
                self.joins.add(lesson)
            else:
                self.profiles.censor(lesson)

    def still_open(self) -> list[OpenWorkflow]:
        """How the open workflows stand, or of too many of a tenant, each so many of them. 1 µs a
        call."""
        return [
            each.standing(self._positions.attained(each.key)[0])
            for each in self._open.some(OPEN_CALLS)
        ]

    def workflows(self) -> list[OpenedWorkflow]:
        """All that are remembered, those that ended lately too. 10 ns each."""
        return self._open.all() + self._ended.all()

    def open_workflow(self, key: WorkflowKey) -> OpenedWorkflow | None:
        return self._open.get(key)

    def workflow(self, tenant: str, workflow_id: str) -> OpenedWorkflow | None:
        """An open workflow, or one of those that ended last."""
        key = tenant, workflow_id
        return self._open.get(key) or self._ended.get(key)

    def _arrived(self, request: Request, at: int, ended: list[CallRow]) -> None:
        """`ended`: by the same record."""
        row = self._tracker.row(request.id)
        if row is None:  # refused at once
            row = next(each for each in ended if each.request.id == request.id)
        key = workflow_key(request)
        workflow = self._open.get(key)
        if workflow is None and self._is_of_ended(key, request.id):
            return  # a task that is done once more after its result: its call is known
        if workflow is None:
            workflow = OpenedWorkflow(key, at)
            assert self.began_at is not None
            workflow.is_whole = request.workflow_started_at >= self.began_at
            self.evicted += self._open.put(workflow)
        self._touch(workflow, at)
        workflow.in_flight.add(request.id)
        position = self._positions.arrived(request, at)
        if len(workflow.calls) < MAX_CALLS:
            size_bytes = workflow.add(WorkflowCall(row, position))
            self.evicted += self._open.called(workflow, 1, size_bytes)
        else:
            workflow.left_out += 1

    def _is_of_ended(self, key: WorkflowKey, request_id: str) -> bool:
        ended = self._ended.get(key)
        return ended is not None and any(call.row.request.id == request_id for call in ended.calls)

    def _call_ended(self, row: CallRow, at: int) -> None:
        self._positions.ended(row.request.id, at, row.completion_tokens)
        workflow = self._open.get(workflow_key(row.request))
        if workflow is None or row.request.id not in workflow.in_flight:
            return  # evicted meanwhile
        self._touch(workflow, at)
        workflow.in_flight.discard(row.request.id)
        if workflow.ended_at is not None and not workflow.in_flight:
            self._close(workflow)

    def _workflow_ended(self, key: WorkflowKey, at: int, *, cancelled: bool) -> None:
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
        self._positions.workflow_ended(workflow.key)
        self.unlearnt += not self._to_learn.add(workflow)
        self._ended.put(workflow)
