"""The side of the clients, in virtual time: workflows that are asked for, and the calls they make.

A call that fails is tried again as by openai's Python client (3.x, its defaults, not streaming):
twice at most, after the Retry-After of the refusal, under the same id; on 408, 409, 429 and 5xx,
not on other refusals. Kairos says Retry-After with every refusal after which trying makes sense, so
the client's own backoff, which is random, never comes into it. Its timeout of 600 s is not
modelled: Kairos gives up a call that has waited so long itself; one that waits and runs for longer
gets its answer here. When its first token comes is told, as of a stream; but a stream that breaks
off, as in `kairos replay`, would not be tried again.

A workflow of which a call fails for good makes no further calls; it has failed when those under way
have ended.
"""

from collections.abc import Callable
from functools import partial
from typing import Protocol

import msgspec
from msgspec.structs import replace

from kairos.core.digest import digest
from kairos.core.errors import KairosError
from kairos.core.events import Arrived, PlanDeclared, Record, WorkflowEnded
from kairos.core.model import EXPECTED_COMPLETION_TOKENS, PARENTS_LIMIT, SECOND, Request
from kairos.simulate.clock import VirtualClock
from kairos.simulate.engine.engine_calls import EngineCall
from kairos.simulate.workload import FileCall
from kairos.simulate.workload.course import Course
from kairos.simulate.workload.prompt import prefix_hashes
from kairos.simulate.workload.retries import RETRIES, is_tried_again
from kairos.simulate.workload.workflows import Submission, Workflow

MODEL = "simulated"
TENANT = "default"

Feed = Callable[[Arrived | PlanDeclared | WorkflowEnded], None]


class Clients(Protocol):
    """Whose calls a simulated pool serves. `left`: of what was asked for, how much has not ended;
    `failed`: of that, what, and why."""

    left: int
    retries: int
    failed: dict[str, str]

    def lengths(self, request_id: str) -> tuple[int, int]: ...

    def engine_call(self, request_id: str, priority: int = 0) -> EngineCall: ...

    def identified(self, record: Record) -> Record: ...

    def answered(self, request_id: str, cached_tokens: int) -> None: ...

    def refused(self, request_id: str, error: KairosError) -> None: ...


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
        """`feed` raises KairosError where the gateway refuses a call at once. `tell_lengths`: calls
        set `max_tokens` to the length that their answers will have, as a replay has to.
        `anonymous`: the share of calls that do not say whose they are. `by_model`: calls ask for
        their own `model`, instead of all for the same."""
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
        """The same as an engine gets it."""
        asked = self._asked[request_id]
        return engine_call(asked.task.course.workflow, asked.position, request_id, priority)

    def _is_anonymous(self, request_id: str) -> bool:
        return self._anonymous > 0 and digest(request_id) / 2**64 < self._anonymous

    def identified(self, record: Record) -> Record:
        """With the request as it would be if it had said whose it is."""
        event = record.event
        if type(event) is not Arrived or event.request.agent is not None:
            return record
        request_id = event.request.id
        request = self._request(request_id, self._asked[request_id], known=True)
        return replace(record, event=Arrived(request))

    def answered(self, request_id: str, _cached_tokens: int) -> None:
        """The answer is here, whole."""
        asked = self._asked.pop(request_id)
        task = asked.task
        self._alone(request_id)
        for position in task.course.ended(asked.position):
            self._release(task, position)
        self._ended(task)

    def refused(self, request_id: str, error: KairosError) -> None:
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
        for position in task.course.begin():
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
            self.refused(request_id, error)

    def _request(self, request_id: str, asked: _Asked, *, known: bool = False) -> Request:
        """What a gateway knows of the call. One that does not say whose it is, is a workflow of its
        own to it."""
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
        """With an anonymous call ends what the gateway takes for its workflow."""
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
