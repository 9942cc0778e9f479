"""Replay of recorded workflows against a running gateway, as HTTP calls of the recorded lengths.

Open loop: workflows begin at their instants, however late replies are; within a workflow a call is
sent when the calls it waits for have ended, plus its gap. The delay of this process itself is
measured and reported. Figures that a client cannot see (queueing, preemptions) are left None.

A prompt's text is words of a fixed list, one for each token, drawn by a hash of the piece's name:
the same name gives the same words, independent of later pieces. Another salt gives others, so a run
never finds an earlier one's texts in a cache. All words are three letters after a space, one
token in common vocabularies; the exact set in this server's, and the tokens that its chat template
adds, follow from the prompt tokens that it reports.
"""

import asyncio
import secrets
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from copy import copy
from hashlib import shake_256
from statistics import median
from typing import Any

import msgspec
import numpy as np

from kairos.core import (
    PARENTS_LIMIT,
    SECOND,
    Arrived,
    CallRow,
    Event,
    Failed,
    Finished,
    FirstToken,
    Record,
    Request,
    RunMetrics,
    SetupError,
    WorkflowEnded,
)
from kairos.host import WallClock
from kairos.proxy import HttpLLM
from kairos.simulate.replay_client import (
    NOT_SENT,
    CallFailed,
    ReplayClient,
    ReplayedCall,
    headers_of,
    server_url,
)
from kairos.simulate.workload.prompt import Prompt, PromptPiece, cut, length
from kairos.simulate.workload.workflows import Course, Submission

_MODELS_S = 30  # to list models takes no engine
_LAST_TOKEN = 0  # by its id: every vocabulary has one

WORDS = (
    "all", "and", "any", "are", "bar", "bit", "but", "can", "cap", "day", "end", "fix", "for",
    "fun", "get", "got", "has", "how", "its", "key", "let", "low", "man", "map", "may", "mix",
    "net", "new", "not", "now", "off", "old", "one", "our", "out", "own", "per", "pop", "raw",
    "row", "run", "see", "set", "she", "sum", "the", "too", "top", "try", "two", "use", "was",
    "way", "who", "won", "you", "had", "her", "him", "did", "why", "say", "yes", "men",
)  # fmt: skip
GROUP = 4  # words that are tried together
ENOUGH = 16  # different words: of so many a block of 16 tokens has 2^64

CountTokens = Callable[[str], Awaitable[int]]

LATE_US = 10_000


class ReplayProgress(msgspec.Struct, frozen=True, kw_only=True):
    elapsed_s: float
    workflows: int
    begun: int
    finished: int
    failed: int
    calls_in_flight: int


class Deviation(msgspec.Struct, frozen=True):
    """Tokens counted by the server minus recorded ones, of calls with reported usage."""

    calls: int
    median: float | None
    worst: int | None  # the farthest from 0


class Replayed(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a replay.

    `rows` has every ended call; its request has the recorded lengths and, in `arrived_at`, the
    instant at which it was sent. Submission number n, from 1, is the workflow `replay-RUN-n`, with
    the calls `replay-RUN-n.POSITION`. `metrics` is the metrics record of the finished workflows.
    """

    run_id: str
    model: str
    rows: list[CallRow]
    metrics: dict[str, Any]
    elapsed_s: float
    workflows: int
    begun: int
    finished: int
    failed: int  # some call of theirs had no answer
    unfinished: int  # given up, or not begun
    late_starts: int  # of workflows, by more than 10 ms
    worst_start_s: float
    not_sent: int  # calls for which this machine had no room, such as open files
    failures: dict[str, int]  # calls by HTTP status, or by what happened
    examples: dict[str, str]  # what one of each was told
    retries: dict[str, int]
    exact_lengths: bool  # the server takes what makes completions as long as recorded
    prompt_deviation: Deviation
    completion_deviation: Deviation

    @property
    def kept_up(self) -> bool:
        """Whether the replay sent the intended load."""
        return not self.not_sent and self.late_starts * 100 <= self.begun

    def figures(self) -> dict[str, Any]:
        """The metrics record, with the rest under `replay`."""
        rest = {
            name: msgspec.to_builtins(getattr(self, name))
            for name in self.__struct_fields__
            if name not in ("rows", "metrics")
        }
        return {**self.metrics, "replay": rest | {"kept_up": self.kept_up}}


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
            self._wording = await measure_wording(self._count_tokens, self._run_id)
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
            for position in task.course.first_calls():
                calls.create_task(self._play(task, position, task.started_at, calls))
        self._tally.workflow_ended(task.id, task.last_at, well=not task.has_failed)
        await self._client.report_end(task.id)

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
        for follower in task.course.finish_call(position):
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


class Wording:
    """Turns prompts into text for one server."""

    def __init__(
        self,
        salt: str,
        words: tuple[str, ...] = WORDS,
        *,
        tokens_per_word: float = 1.0,
        overhead_tokens: int = 0,
    ) -> None:
        """Create it. Texts with different salts share nothing.

        `overhead_tokens` are the tokens that the chat template adds. The text is that much shorter,
        at its end: so two prompts share at least the prefix that they should, and more
        only by the template's part before the text.
        """
        self._salt = salt.encode()
        self.tokens_per_word = tokens_per_word
        self.overhead_tokens = overhead_tokens
        # One entry for each value of a byte of the hash: a prompt is a single look-up in it.
        self._words: np.ndarray[Any, Any] = np.resize(
            np.array([f" {word}".encode() for word in words]), 256
        )

    def text(self, prompt: Prompt) -> str:
        """Return the text, at least one word.

        Deterministic; it is in memory while the caller keeps it.
        """
        left_out = min(self.overhead_tokens, length(prompt) - 1)
        pieces = cut(prompt, left_out)
        return b"".join(map(self._words_of, pieces)).decode("ascii") or f" {WORDS[0]}"

    def _words_of(self, piece: PromptPiece) -> bytes:
        words = round(piece.tokens / self.tokens_per_word)
        # Its first bytes are the same, however many are asked for.
        drawn = shake_256(self._salt + b"/" + piece.name.encode()).digest(words)
        return self._words[np.frombuffer(drawn, np.uint8)].tobytes()


async def measure_wording(count_tokens: CountTokens, salt: str) -> Wording:
    """The wording for a server that counts this many tokens in a chat of one message of text.

    Takes 2 counts where all words are one token each, else 18.
    """
    once, twice = await count_tokens(_said(WORDS)), await count_tokens(_said(WORDS * 2))
    if twice - once < len(WORDS) / 2:
        return Wording(salt)  # it does not count tokens
    overhead = max(0, 2 * once - twice)
    tokens_per_word = (twice - once) / len(WORDS)
    if tokens_per_word == 1:
        return Wording(salt, overhead_tokens=overhead)
    single: list[str] = []
    for start in range(0, len(WORDS), GROUP):
        group = WORDS[start : start + GROUP]
        if await count_tokens(_said(group)) == overhead + len(group):
            single += group
    if len(single) >= ENOUGH:
        return Wording(salt, tuple(single), overhead_tokens=overhead)
    return Wording(salt, tokens_per_word=tokens_per_word, overhead_tokens=overhead)


def _said(words: tuple[str, ...]) -> str:
    return "".join(f" {word}" for word in words)


class Tally:
    """Counters of a running replay. Instants are in µs."""

    def __init__(self, workflows: int) -> None:
        self.begun = self.calls_in_flight = 0
        self._workflows = workflows
        self._finished = self._failed = 0
        self._late_us: list[int] = []  # of the workflows' first calls
        self._failures: Counter[str] = Counter()
        self._examples: dict[str, str] = {}
        self._metrics = RunMetrics()

    def sent_first(self, late_us: int) -> None:
        """Count a workflow's first call, sent this much later than planned."""
        self._late_us.append(late_us)

    def call_ended(self, request: Request, answered: ReplayedCall, at: int) -> None:
        self._observe(Arrived(request), request.arrived_at)
        if answered.first_token_at is not None:
            self._observe(FirstToken(request.id), answered.first_token_at)
        usage = answered.usage
        self._observe(Finished(request.id, usage.prompt, usage.completion, usage.cached), at)

    def call_failed(self, request: Request, error: CallFailed, at: int) -> None:
        self._failures[error.kind] += 1
        self._examples.setdefault(error.kind, str(error))
        self._observe(Arrived(request), request.arrived_at)
        self._observe(Failed(request.id, error.kind), at)

    def workflow_ended(self, workflow_id: str, at: int, *, well: bool) -> None:
        if not well:
            self._failed += 1
            return
        self._finished += 1
        self._observe(WorkflowEnded("default", workflow_id), at)

    def _observe(self, event: Event, at: int) -> None:
        self._metrics(Record(at, event))

    def progress(self, elapsed_us: int) -> ReplayProgress:
        return ReplayProgress(
            elapsed_s=elapsed_us / SECOND,
            workflows=self._workflows,
            begun=self.begun,
            finished=self._finished,
            failed=self._failed,
            calls_in_flight=self.calls_in_flight,
        )

    def result(
        self, *, run_id: str, model: str, elapsed_us: int, retries: Counter[str], exact: bool
    ) -> Replayed:
        rows = list(self._metrics.rows)
        finished = copy(self._metrics)  # which goes on counting
        finished.drop_open()  # of workflows that failed too: their ends were not told
        return Replayed(
            run_id=run_id,
            model=model,
            rows=rows,
            metrics=finished.record(),
            elapsed_s=elapsed_us / SECOND,
            workflows=self._workflows,
            begun=self.begun,
            finished=self._finished,
            failed=self._failed,
            unfinished=self._workflows - self._finished - self._failed,
            late_starts=sum(late > LATE_US for late in self._late_us),
            worst_start_s=max(self._late_us, default=0) / SECOND,
            not_sent=self._failures[NOT_SENT],
            failures=dict(self._failures),
            examples=self._examples,
            retries=dict(retries),
            exact_lengths=exact,
            prompt_deviation=_deviation(
                [
                    row.prompt_tokens - row.request.prompt_tokens
                    for row in rows
                    if row.prompt_tokens is not None
                ]
            ),
            completion_deviation=_deviation(
                [
                    row.completion_tokens - row.request.completion_tokens
                    for row in rows
                    if row.completion_tokens is not None
                ]
            ),
        )


def _deviation(differences: Sequence[int]) -> Deviation:
    if not differences:
        return Deviation(0, None, None)
    return Deviation(len(differences), median(differences), max(differences, key=abs))
