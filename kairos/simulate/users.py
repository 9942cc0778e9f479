"""Clients in virtual time: workflows that users request, and their calls.

A failed call is retried as by openai's Python client (3.x, its defaults, not streaming): at most
twice, after the Retry-After of the refusal, with the same id; on 408, 409, 429 and 5xx, not on
other refusals. Kairos sends Retry-After with every refusal after which a retry makes sense, so the
client's own random backoff is never used. Its timeout of 600 s is not modelled: Kairos itself
refuses a call that has waited so long; one that waits and runs for longer gets its answer here. The
time of the first token is recorded, as for a stream; but a stream that breaks off, as in
`kairos replay`, would not be retried.

A workflow with a call that fails permanently makes no further calls; it has failed when its calls
in progress have ended.
"""

from collections.abc import Callable
from functools import partial
from typing import Protocol

import msgspec
from msgspec.structs import replace

from kairos.core import (
    EXPECTED_COMPLETION_TOKENS,
    PARENTS_LIMIT,
    SECOND,
    Arrived,
    KairosError,
    PlanDeclared,
    Record,
    Request,
    WorkflowEnded,
    text_digest,
)
from kairos.simulate.clock import VirtualClock
from kairos.simulate.engine.sequence import EngineCall
from kairos.simulate.workload.prompt import prefix_hashes
from kairos.simulate.workload.retries import RETRIES, is_tried_again
from kairos.simulate.workload.workflow_file import FileCall
from kairos.simulate.workload.workflows import Course, Submission, Workflow

MODEL = "simulated"
TENANT = "default"

Feed = Callable[[Arrived | PlanDeclared | WorkflowEnded], None]


class Clients(Protocol):
    """Clients whose calls a simulated pool serves.

    `left`: the number of unfinished workflows; `failed`: the failed ones, with reasons.
    """

    left: int
    retries: int
    failed: dict[str, str]

    def lengths(self, request_id: str) -> tuple[int, int]: ...

    def engine_call(self, request_id: str, priority: int = 0) -> EngineCall: ...

    def identified(self, record: Record) -> Record: ...

    def finish_call(self, request_id: str, cached_tokens: int) -> None: ...

    def fail_call(self, request_id: str, error: KairosError) -> None: ...


class _Task(msgspec.Struct):
    """A workflow that was asked for."""

    course: Course
    started_at: int
    under_way: int = 0  # calls
    failed: bool = False


class _Asked(msgspec.Struct):
    """A call that was made and has not ended."""

    task: _Task
    position: int
    attempt: int = 1


class Users:
    """Submits workflows when they are due, and makes their calls when they may be made."""

    def __init__(
        self,
        clock: VirtualClock,
        feed: Feed,
        *,
        tell_lengths: bool,
        anonymous: float = 0.0,
        by_model: bool = False,
    ) -> None:
        """Create the users. `feed` raises KairosError if the gateway refuses a call at once.

        `tell_lengths`: calls set `max_tokens` to the length of their answers, as a replay must.
        `anonymous`: the share of calls that do not declare their identity. `by_model`: calls ask
        for their own `model`, instead of all for the same.
        """
        self._clock, self._feed, self._tell_lengths = clock, feed, tell_lengths
        self._anonymous, self._by_model = anonymous, by_model
        self._asked: dict[str, _Asked] = {}  # by request id
        self.left = 0  # workflows that have not ended, those to come included
        self.retries = 0
        self.failed: dict[str, str] = {}  # workflow id -> why

    def expect(self, submission: Submission) -> None:
        """A workflow that will be asked for; ids differ. The last one's end stops the clock."""
        self.left += 1
        self._clock.call_at(submission.at_us, partial(self._submit, submission))

    def call(self, request_id: str) -> FileCall:
        """A call that was made and has not ended, as it was recorded."""
        asked = self._asked[request_id]
        return asked.task.course.workflow.calls[asked.position]

    def lengths(self, request_id: str) -> tuple[int, int]:
        """Tokens of its prompt, and of its answer."""
        call = self.call(request_id)
        return call.prompt_tokens, call.completion_tokens

    def engine_call(self, request_id: str, priority: int = 0) -> EngineCall:
        """Return the call as an engine receives it."""
        asked = self._asked[request_id]
        return engine_call(asked.task.course.workflow, asked.position, request_id, priority)

    def _is_anonymous(self, request_id: str) -> bool:
        return self._anonymous > 0 and text_digest(request_id) / 2**64 < self._anonymous

    def identified(self, record: Record) -> Record:
        """Return the record with the request as if it had declared its identity."""
        event = record.event
        if type(event) is not Arrived or event.request.agent is not None:
            return record
        request_id = event.request.id
        request = self._request(request_id, self._asked[request_id], known=True)
        return replace(record, event=Arrived(request))

    def finish_call(self, request_id: str, _cached_tokens: int) -> None:
        """The answer is here, whole."""
        asked = self._asked.pop(request_id)
        task = asked.task
        self._alone(request_id)
        for position in task.course.finish_call(asked.position):
            self._release(task, position)
        self._ended(task)

    def fail_call(self, request_id: str, error: KairosError) -> None:
        """The call failed, in the queue or on an instance."""
        asked = self._asked[request_id]
        if asked.attempt > RETRIES or not is_tried_again(error.status):
            del self._asked[request_id]
            self._alone(request_id)
            self._give_up(asked.task, str(error))
            return
        asked.attempt += 1
        self.retries += 1
        again_at = self._clock.now() + (error.retry_after_s or 0) * SECOND
        self._clock.call_at(again_at, partial(self._ask, request_id, asked))

    def _submit(self, submission: Submission) -> None:
        task = _Task(Course(submission.workflow), self._clock.now())
        for position in task.course.first_calls():
            self._release(task, position)

    def _release(self, task: _Task, position: int) -> None:
        at = self._clock.now() + task.course.gap_us(position)
        self._clock.call_at(at, partial(self._make, task, position))

    def _make(self, task: _Task, position: int) -> None:
        if task.failed:
            return
        task.under_way += 1
        request_id = _request_id(task, position)
        asked = self._asked[request_id] = _Asked(task, position)
        self._ask(request_id, asked)

    def _ask(self, request_id: str, asked: _Asked) -> None:
        try:
            self._feed(Arrived(self._request(request_id, asked)))
        except KairosError as error:
            self.fail_call(request_id, error)

    def _request(self, request_id: str, asked: _Asked, *, known: bool = False) -> Request:
        """Return the request as a gateway sees it; an anonymous call is a workflow of its own."""
        task, workflow = asked.task, asked.task.course.workflow
        call = workflow.calls[asked.position]
        expected = EXPECTED_COMPLETION_TOKENS
        if self._tell_lengths:
            expected = min(expected, call.completion_tokens)
        known = known or not self._is_anonymous(request_id)
        parents = workflow.waits_for[asked.position][-PARENTS_LIMIT:] if known else ()
        return Request(
            id=request_id,
            tenant=TENANT,
            workflow_id=workflow.id if known else request_id,
            app=call.app if known else None,
            agent=call.agent if known else None,
            upstream=call.upstream if known else None,
            parent_ids=tuple(_request_id(task, each) for each in parents),
            attempt=asked.attempt,
            model=call.model if self._by_model else MODEL,
            workflow_started_at=task.started_at if known else self._clock.now(),
            arrived_at=self._clock.now(),
            prompt_tokens=call.prompt_tokens,
            completion_tokens=expected,
            completion_limit=call.completion_tokens if self._tell_lengths else None,
            prefix=prefix_hashes(workflow.prompts[asked.position]),
            prefix_units=call.prompt_tokens,
        )

    def _alone(self, request_id: str) -> None:
        """End the workflow that the gateway assumes for an anonymous call."""
        if self._is_anonymous(request_id):
            self._feed(WorkflowEnded(TENANT, request_id))

    def _give_up(self, task: _Task, why: str) -> None:
        task.failed = True
        self.failed.setdefault(task.course.workflow.id, why)
        self._ended(task)

    def _ended(self, task: _Task) -> None:
        """A call of the task is not under way any more."""
        task.under_way -= 1
        if task.under_way == 0 and (task.failed or task.course.is_done):
            self._feed(WorkflowEnded(TENANT, task.course.workflow.id))
            self.left -= 1
            if not self.left:
                self._clock.stop()


def _request_id(task: _Task, position: int) -> str:
    return f"{task.course.workflow.id}/{position}"


def engine_call(workflow: Workflow, position: int, call_id: str, priority: int = 0) -> EngineCall:
    """A call of the workflow as an engine gets it."""
    return EngineCall(
        id=call_id,
        prompt=workflow.prompts[position],
        completion_tokens=workflow.calls[position].completion_tokens,
        priority=priority,
    )
