"""Position of each request in its workflow, as the basis of estimates of remaining work.

Learning and serving see the same facts and both use this module, so a training sample describes its
call exactly as the call was described when it was queued.
"""

from collections.abc import Mapping

from kairos.core.learnt import POOLED_AGENT
from kairos.core.model import SECOND, Budget, Request, least
from kairos.core.position import Position
from kairos.core.shared_lru import SharedLru

MAX_WORKFLOWS = 100_000
MAX_NAMES = 256  # agent names distinguished in one workflow; the rest count as one
IDLE_US = 600 * SECOND

WorkflowKey = tuple[str, str]  # tenant, workflow id


def workflow_key(request: Request) -> WorkflowKey:
    return request.tenant, request.workflow_id


class Used:
    """Usage of a workflow since it became known."""

    calls: int = 0  # calls in flight, and ended calls that had been dispatched
    tokens: int = 0  # tokens of ended calls, and estimated prompts of calls in flight
    budget: Budget | None = None  # the smallest limits that its calls asked for
    ends_at: int | None = None  # when its time is up, by the budget at the last check
    waiting: int = 0  # number of waiting calls
    waited_us: int = 0  # time in which any call waited, up to `since`
    since: int = 0  # last change of `waiting`

    def __init__(self, began_at: int) -> None:
        self.began_at = began_at  # when its first call arrived

    def waits(self, more: int, at: int) -> None:
        """Add `more` waiting calls (negative: remove some)."""
        self.waited_us, self.since = self.waited_by(at), at
        self.waiting += more

    def waited_by(self, at: int) -> int:
        """Return for how long any of its calls waited; concurrent waits count once."""
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
    """Tracker of open workflows. O(1) per fact, amortised.

    Bounded: the tenant with most workflows loses the one idle for longest; if that goes on, it
    counts as a new workflow.
    """

    def __init__(self, *, max_workflows: int = MAX_WORKFLOWS, idle_us: int = IDLE_US) -> None:
        self._idle_us = idle_us
        self._workflows: SharedLru[WorkflowKey, _Workflow] = SharedLru(max_workflows)
        self._calls: dict[str, _Call] = {}  # in flight
        self._none_idle_before = 0
        self.begun = 0  # number of workflows that have begun

    def __len__(self) -> int:
        return len(self._workflows)

    def record_arrival(self, request: Request, at: int) -> Position:
        """Add a new call to its workflow, and return its position."""
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
            agent = POOLED_AGENT
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

    def record_dispatch(self, request_id: str, at: int) -> None:
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
        """Return whether any call of the workflow was ever dispatched."""
        workflow = self._workflows.get(key)
        return workflow is not None and workflow.begun

    def is_idle(self, key: WorkflowKey, at: int) -> bool:
        """Return whether the workflow, if known, will be forgotten when the next call arrives."""
        workflow = self._workflows.get(key)
        return (
            workflow is not None
            and not workflow.in_flight
            and workflow.seen_at <= at - self._idle_us
        )

    def record_bounce(self, request_id: str, at: int) -> None:
        """Record that a call waits again.

        Its time on the instance counts neither as served nor as wait.
        """
        call = self._calls.get(request_id)
        if call is None:
            return
        if call.dispatched_at is not None:
            call.used.waits(1, at)
        call.dispatched_at = None

    def record_call_end(
        self, request_id: str, at: int, completion_tokens: int | None, used_tokens: int = 0
    ) -> None:
        """Record that a call finished, failed, was cancelled or refused.

        `completion_tokens`: of its answer; None if it did not finish. `used_tokens`: of prompt and
        answer, which may also be known for an unfinished call.
        """
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
        workflow.in_flight = max(0, workflow.in_flight - 1)  # 0 if it was forgotten and began again
        began_at = at if call.dispatched_at is None else call.dispatched_at
        workflow.served_us += at - began_at
        workflow.waited_us += began_at - call.arrived_at
        if completion_tokens is not None:
            workflow.last_completion = completion_tokens

    def used(self, key: WorkflowKey) -> Used | None:
        """Return the usage of the workflow; None if it is unknown."""
        workflow = self._workflows.get(key)
        return None if workflow is None else workflow.used

    def waited_us(self, request_id: str, at: int) -> int:
        """Return for how long any call of the workflow waited, given one of its calls in flight."""
        call = self._calls.get(request_id)
        return 0 if call is None else call.used.waited_by(at)

    def attained(self, key: WorkflowKey) -> tuple[int, int]:
        """Return execution latency and waiting time of the workflow's ended calls, in µs."""
        workflow = self._workflows.get(key)
        return (workflow.served_us, workflow.waited_us) if workflow is not None else (0, 0)

    def visits(self, key: WorkflowKey) -> tuple[str | None, Mapping[str | None, int]]:
        """Return the app that began the workflow, and its number of calls by agent."""
        workflow = self._workflows.get(key)
        return (None, {}) if workflow is None else (workflow.app, workflow.visits)

    def end_workflow(self, key: WorkflowKey) -> None:
        self._workflows.remove(key[0], key)

    def _touch(self, key: WorkflowKey, workflow: _Workflow, at: int) -> None:
        workflow.seen_at = at
        self._workflows.touch(key[0], key)

    def forget_idle(self, at: int) -> None:
        """Forget workflows that were silent for too long."""
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
                self._touch(key, workflow, at)  # a long call is not silence
            else:
                self._workflows.remove(key[0], key)
