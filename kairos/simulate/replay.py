"""Replay of recorded workflows against a running gateway, as HTTP calls of the recorded lengths.

Open loop: workflows begin at their instants, however late replies are; within a workflow a call is
sent when the calls it waits for have ended, plus its gap. The delay of this process itself is
measured and reported. Figures that a client cannot see (queueing, preemptions) are left None.
"""

import asyncio
import secrets
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import msgspec

from kairos.core import PARENTS_LIMIT, SECOND, Request, SetupError
from kairos.host import WallClock
from kairos.proxy import HttpLLM
from kairos.simulate.replay_client import CallFailed, ReplayClient, headers_of, server_url
from kairos.simulate.replay_text import Wording, measured
from kairos.simulate.replayed import Replayed, ReplayProgress, Tally
from kairos.simulate.workload.course import Course
from kairos.simulate.workload.workflows import Submission

_MODELS_S = 30  # to list models takes no engine
_LAST_TOKEN = 0  # by its id: every vocabulary has one


class _Task(msgspec.Struct):
    """A workflow under way."""

    id: str
    course: Course
    started_at: int  # when it was due
    last_at: int = 0  # when a call of it ended last
    is_sent: bool = False
    has_failed: bool = False


class Replay:
    """`run` it once; `result` tells what there is so far, also when it was cancelled."""

    def __init__(
        self,
        url: str,
        submissions: Sequence[Submission],
        *,
        model: str | None = None,
        api_key: str | None = None,
        stream: bool = True,
        time_limit_s: float | None = None,
        tell_lengths: bool = True,
    ) -> None:
        """Create the replay.

        `model`: None is the first that the server offers. `time_limit_s` counts from the first
        arrival; unfinished workflows are abandoned then. `tell_lengths`: calls declare in
        `max_tokens` how long their answers will be; otherwise, if the server accepts vLLM's fields,
        nothing announces it.
        """
        self._server, self._api_key = server_url(url), api_key
        self._submissions, self._limit_s = submissions, time_limit_s
        self._model = model or ""
        self._stream = {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
        self._now = WallClock().now
        self._client = ReplayClient(self._server, api_key, self._now)
        self._is_exact, self._tell_lengths = True, tell_lengths
        self._run_id = secrets.token_hex(4)
        self._wording = Wording(self._run_id)
        self._tally = Tally(len(submissions))
        self._began_at = self._ended_at = 0

    @property
    def has_begun(self) -> bool:
        """Whether a workflow has begun."""
        return self._tally.begun > 0

    async def run(self) -> Replayed:
        """Submit all workflows as they are due, and follow them to their ends.

        Raises:
            KairosError: nobody answers there, or not as a chat is answered; nothing was submitted.
        """
        self._model = self._model or await self._first_model()
        async with self._client:
            await self._get_to_know()
            self._began_at = self._now()
            try:
                with suppress(TimeoutError):  # the result says what did not finish
                    async with asyncio.timeout(self._limit_s), asyncio.TaskGroup() as workflows:
                        for number, submission in enumerate(self._submissions, 1):
                            await self._until(self._began_at + submission.at_us)
                            workflows.create_task(self._follow(number, submission))
            finally:
                self._ended_at = self._now()
        return self.result()

    def progress(self) -> ReplayProgress:
        return self._tally.progress(self._now() - self._began_at if self._began_at else 0)

    def result(self) -> Replayed:
        return self._tally.result(
            run_id=self._run_id,
            model=self._model,
            elapsed_us=self._ended_at - self._began_at,
            retries=self._client.retried,
            exact=self._is_exact,
        )

    async def _first_model(self) -> str:
        base_url = f"{self._server}/v1"
        async with HttpLLM(base_url, self._api_key, timeout_s=_MODELS_S) as llm:
            for model in await llm.models():
                return model
        raise SetupError(f"{self._server} offers no model now: start its engines, or name one")

    async def _get_to_know(self) -> None:
        """Learn whether the server takes fields that are vLLM's, and how it counts tokens."""
        try:
            await self._count_tokens(" the")
        except CallFailed as error:
            if error.kind not in ("400", "422"):
                raise
            self._is_exact = False
            await self._count_tokens(" the")
        try:
            self._wording = await measured(self._count_tokens, self._run_id)
        except CallFailed as error:
            # Its context is very short: the deviations will say how far off.
            if error.kind not in ("400", "413", "422"):
                raise

    async def _count_tokens(self, text: str) -> int:
        answered = await self._client.chat(self._content(text, 1), {})
        return answered.usage.prompt or 0

    async def _until(self, at: int) -> None:
        # More than once, since a timer may be a little early.
        while (wait_us := at - self._now()) > 0:  # noqa: ASYNC110 (no event tells of time)
            await asyncio.sleep(wait_us / SECOND)

    async def _follow(self, number: int, submission: Submission) -> None:
        """A workflow from its arrival to its end."""
        task = _Task(
            id=f"replay-{self._run_id}-{number}",
            course=Course(submission.workflow),
            started_at=self._began_at + submission.at_us,
        )
        self._tally.begun += 1
        async with asyncio.TaskGroup() as calls:
            for position in task.course.begin():
                calls.create_task(self._play(task, position, task.started_at, calls))
        self._tally.workflow_ended(task.id, task.last_at, well=not task.has_failed)
        await self._client.end(task.id)

    async def _play(
        self, task: _Task, position: int, released_at: int, calls: asyncio.TaskGroup
    ) -> None:
        """Make a call, then the calls that waited for it, unless the workflow has failed."""
        due_at = released_at + task.course.gap_us(position)
        await self._until(due_at)
        if task.has_failed:
            return
        workflow = task.course.workflow
        text = self._wording.text(workflow.prompts[position])
        content = self._content(text, workflow.calls[position].completion_tokens)
        del text  # as large as the content, which is kept until the call ends
        request = self._request(task, position)
        if not task.is_sent:
            task.is_sent = True
            self._tally.sent_first(request.arrived_at - due_at)
        self._tally.calls_in_flight += 1
        try:
            answered = await self._client.chat(content, headers_of(request))
        except CallFailed as error:
            task.has_failed = True
            self._tally.call_failed(request, error, self._now())
            return
        finally:
            self._tally.calls_in_flight -= 1
        task.last_at = self._now()
        self._tally.call_ended(request, answered, task.last_at)
        for follower in task.course.ended(position):
            calls.create_task(self._play(task, follower, task.last_at, calls))

    def _content(self, text: str, completion_tokens: int) -> bytes:
        body = {
            "model": self._model,
            "messages": [{"role": "user", "content": text}],
            **self._length(completion_tokens),
            **self._stream,
        }
        return msgspec.json.encode(body)

    def _length(self, tokens: int) -> dict[str, Any]:
        """The fields that make an answer so long."""
        if not self._is_exact:
            return {"max_tokens": tokens}
        if self._tell_lengths:
            return {"max_tokens": tokens, "min_tokens": tokens, "ignore_eos": True}
        # Its last token is one that ends it, allowed from there on, and there as good as certain.
        return {
            "min_tokens": tokens - 1,
            "stop_token_ids": [_LAST_TOKEN],
            "logit_bias": {str(_LAST_TOKEN): 100},
            "ignore_eos": True,
        }

    def _request(self, task: _Task, position: int) -> Request:
        """The call as recorded, sent now."""
        workflow = task.course.workflow
        call, parents = workflow.calls[position], workflow.waits_for[position][-PARENTS_LIMIT:]
        return Request(
            id=f"{task.id}.{position}",
            workflow_id=task.id,
            app=call.app,
            agent=call.agent,
            upstream=call.upstream,
            parent_ids=tuple(f"{task.id}.{parent}" for parent in parents),
            model=self._model,
            workflow_started_at=task.started_at,
            arrived_at=self._now(),
            prompt_tokens=call.prompt_tokens,
            completion_tokens=call.completion_tokens,
        )
