"""Results of a replay, as its client saw them."""

from collections import Counter
from collections.abc import Sequence
from copy import copy
from statistics import median
from typing import Any

import msgspec

from kairos.core import (
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
    WorkflowEnded,
)
from kairos.simulate.replay_client import NOT_SENT, CallFailed, ReplayedCall

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
