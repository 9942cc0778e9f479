"""Where a request stands in its workflow: what its past says of what is left.

Learning and serving see the same facts, so both ask here: a sample that is learnt from describes
its call exactly as the call was described when it had to be placed in the queue.
"""

from collections.abc import Mapping

from kairos.core.learnt import POOLED
from kairos.core.model import SECOND, Budget, Request, least
from kairos.core.position import Position
from kairos.core.shared_lru import SharedLru

MAX_WORKFLOWS = 100_000
MAX_NAMES = 256  # of agents, in one workflow; the rest count as one
IDLE_US = 600 * SECOND

WorkflowKey = tuple[str, str]  # tenant, workflow id


def workflow_key(request: Request) -> WorkflowKey:
    return request.tenant, request.workflow_id


class Used:
    """What a workflow has used since it is known."""

    calls: int = 0  # those in flight, and those that ended and had been dispatched
    tokens: int = 0  # of those that ended, and prompts, as estimated, of those in flight
    budget: Budget | None = None  # the least that its calls asked for
    ends_at: int | None = None  # when its time is up, as its budget was last found
    waiting: int = 0  # calls that do
    waited_us: int = 0  # while any call did, up to `since`
    since: int = 0  # when calls began or ceased to wait

    def __init__(self, began_at: int) -> None:
        self.began_at = began_at  # when its first call arrived

    def waits(self, more: int, at: int) -> None:
        """Add calls that wait from now on; a negative number: fewer do."""
        self.waited_us, self.since = self.waited_by(at), at
        self.waiting += more

    def waited_by(self, at: int) -> int:
        """Return for how long any of its calls waited: calls side by side count once."""
        return self.waited_us + (max(0, at - self.since) if self.waiting else 0)


class _Workflow:
    __slots__ = (
        "app",
        "begun",
        "calls",
        "first_prompt",
        "in_flight",
        "last_completion",
        "last_prompt",
        "seen_at",
        "served_us",
        "used",
        "visits",
        "waited_us",
    )

    def __init__(self, request: Request, at: int) -> None:
        self.used = Used(at)
        self.app = request.app
        self.begun = False
        self.calls = 0
        self.in_flight = 0
        self.visits: dict[str | None, int] = {}  # by agent
        self.first_prompt = request.prompt_tokens
        self.last_prompt = request.prompt_tokens
        self.last_completion = 0
        self.served_us = 0
        self.waited_us = 0
        self.seen_at = at


class _Call:
    dispatched_at: int | None = None

    def __init__(
        self,
        workflow: WorkflowKey,
        arrived_at: int,
        prompt_tokens: int,
        used: Used,
    ) -> None:
        self.workflow = workflow
        self.arrived_at = arrived_at
        self.prompt_tokens = prompt_tokens
        self.used = used  # its workflow's, even if that is forgotten before the call ends


class WorkflowTracker:
    """Follows the open workflows. Bounded: of the tenant that has most the longest idle are
    forgotten, and one that goes on after that is taken for a new one. O(1) per fact, amortised."""

    def __init__(self, *, max_workflows: int = MAX_WORKFLOWS, idle_us: int = IDLE_US) -> None:
        self._idle_us = idle_us
        self._workflows: SharedLru[WorkflowKey, _Workflow] = SharedLru(max_workflows)
        self._calls: dict[str, _Call] = {}  # in flight
        self._none_idle_before = 0
        self.begun = 0  # workflows that were ever taken for new ones

    def __len__(self) -> int:
        return len(self._workflows)

    def arrived(self, request: Request, at: int) -> Position:
        """Where the new call stands; from now on it is one of its workflow's calls."""
        self.forget_idle(at)
        key = workflow_key(request)
        workflow = self._workflows.get(key)
        if workflow is None:
            workflow = _Workflow(request, at)
            self.begun += 1
            self._workflows.put(request.tenant, key, workflow)
        else:
            self._touch(key, workflow, at)
        agent, visits, prompt_tokens = request.agent, workflow.visits, request.prompt_tokens
        if agent not in visits and len(visits) >= MAX_NAMES:
            agent = POOLED
        visit = visits[agent] = visits.get(agent, 0) + 1
        position = Position(
            stage=workflow.calls,
            visit=visit,
            prompt_tokens=prompt_tokens,
            grown_tokens=prompt_tokens - workflow.first_prompt,
            added_tokens=prompt_tokens - workflow.last_prompt,
            agents=len(visits),
            served_us=workflow.served_us,
            last_completion_tokens=workflow.last_completion,
        )
        workflow.calls += 1
        workflow.in_flight += 1
        workflow.last_prompt = prompt_tokens
        used = workflow.used
        used.calls += 1
        used.tokens += prompt_tokens
        if request.budget is not None:
            used.budget = least(request.budget, used.budget)
        used.waits(1, at)
        self._calls[request.id] = _Call(key, at, prompt_tokens, used)
        return position

    def dispatched(self, request_id: str, at: int) -> None:
        call = self._calls.get(request_id)
        if call is None:
            return
        if call.dispatched_at is None:
            call.used.waits(-1, at)
        call.dispatched_at = at
        workflow = self._workflows.get(call.workflow)
        if workflow is not None:
            workflow.begun = True

    def has_begun(self, key: WorkflowKey) -> bool:
        """Whether a call of the workflow ever went to an instance."""
        workflow = self._workflows.get(key)
        return workflow is not None and workflow.begun

    def is_idle(self, key: WorkflowKey, at: int) -> bool:
        """Whether the workflow, if it is known, will be forgotten by the next call that arrives."""
        workflow = self._workflows.get(key)
        return (
            workflow is not None
            and not workflow.in_flight
            and workflow.seen_at <= at - self._idle_us
        )

    def bounced(self, request_id: str, at: int) -> None:
        """It waits once more. What it had of its instance is neither served nor waited for."""
        call = self._calls.get(request_id)
        if call is None:
            return
        if call.dispatched_at is not None:
            call.used.waits(1, at)
        call.dispatched_at = None

    def ended(
        self, request_id: str, at: int, completion_tokens: int | None, used_tokens: int = 0
    ) -> None:
        """The call finished, failed, was cancelled or refused (no completion tokens). What it used,
        prompt and answer, may be known of those that did not finish, too."""
        call = self._calls.pop(request_id, None)
        if call is None:
            return
        call.used.tokens += used_tokens - call.prompt_tokens
        if call.dispatched_at is None:
            call.used.calls -= 1
            call.used.waits(-1, at)
        workflow = self._workflows.get(call.workflow)
        if workflow is None:
            return
        self._touch(call.workflow, workflow, at)
        workflow.in_flight = max(0, workflow.in_flight - 1)  # one that was forgotten meanwhile: 0
        began_at = at if call.dispatched_at is None else call.dispatched_at
        workflow.served_us += at - began_at
        workflow.waited_us += began_at - call.arrived_at
        if completion_tokens is not None:
            workflow.last_completion = completion_tokens

    def used(self, key: WorkflowKey) -> Used | None:
        """What the workflow has used; None: it is not known."""
        workflow = self._workflows.get(key)
        return None if workflow is None else workflow.used

    def waited_us(self, request_id: str, at: int) -> int:
        """Return for how long any call of the workflow of a call in flight has waited."""
        call = self._calls.get(request_id)
        return 0 if call is None else call.used.waited_by(at)

    def attained(self, key: WorkflowKey) -> tuple[int, int]:
        """Execution latency and waiting of the workflow's calls that ended, in µs."""
        workflow = self._workflows.get(key)
        return (workflow.served_us, workflow.waited_us) if workflow is not None else (0, 0)

    def visits(self, key: WorkflowKey) -> tuple[str | None, Mapping[str | None, int]]:
        """The app that began the workflow, and how many calls of each agent have come."""
        workflow = self._workflows.get(key)
        return (None, {}) if workflow is None else (workflow.app, workflow.visits)

    def workflow_ended(self, key: WorkflowKey) -> None:
        self._workflows.remove(key[0], key)

    def _touch(self, key: WorkflowKey, workflow: _Workflow, at: int) -> None:
        workflow.seen_at = at
        self._workflows.touch(key[0], key)

    def forget_idle(self, at: int) -> None:
        """Those of which nothing was heard for too long."""
        if at < self._none_idle_before:
            return
        since = at - self._idle_us
        self._none_idle_before = at + self._idle_us
        while self._workflows:
            key, workflow = self._workflows.oldest()
            if workflow.seen_at > since:
                self._none_idle_before = workflow.seen_at + self._idle_us
                return
            if workflow.in_flight:
                self._touch(key, workflow, at)  # a call that takes long is no silence
            else:
                self._workflows.remove(key[0], key)
