"""Drive an executor: pass facts to it, and its commands on, until it ends the run.

`RunSession` has the progress of a driven run: in this session, and over all sessions.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Mapping

import msgspec

from kairos.workflows.execute.commands import (
    DropCall,
    DropHeld,
    DropRow,
    EndRun,
    FailRow,
    FetchCached,
    FlowCommand,
    GatherRow,
    IssueCall,
    KeepAnswer,
    KeepResult,
    ReadGroups,
    ReadRows,
    RunFunction,
    RunProcessor,
    TouchPrefix,
    WriteRow,
)
from kairos.workflows.execute.executor import Executor
from kairos.workflows.execute.facts import (
    CacheAnswered,
    CallAnswered,
    CallBroke,
    EnginesIdle,
    FlowFact,
    StopAsked,
)
from kairos.workflows.execute.observation import Fallback, FlowObservation, Timeline
from kairos.workflows.run.calls import RunCalls
from kairos.workflows.run.intake import TableIntake
from kairos.workflows.run.result_store import CachedValue, ResultStore
from kairos.workflows.run.rows import InputTable

# Unwritten changes of the journal, and their bytes, at which the executor waits for the disk.
BACKLOG, BACKLOG_BYTES = 10_000, 64 << 20
_WAIT_S = 0.05
LOOK_S = 1.0  # between two checks whether engines idle
_FACTS_AT_ONCE = 32  # then other tasks have their turn

# Figures of an executor that are added up over the sessions of a run.
_SPENT_FIGURES = (
    "calls",
    "functions",
    "processed",
    "retried",
    "cut",
    "skipped",
    "defaulted",
    "merged",
    "fetched",
    "prompt_tokens",
    "completion_tokens",
    "cached_tokens",
    "touched",
)
_ALL = 1 << 62  # rows
ENDED_ROWS = ("written", "failed", "dropped", "gathered")


class RunDriver:
    """Passes facts to the executor one by one; `add_fact` adds one, from the loop's thread.

    While the disk is full no fact reaches the executor, so it makes no new calls; results of calls
    in flight wait here.
    """

    def __init__(
        self,
        executor: Executor,
        store: ResultStore,
        on_workflow_end: Callable[[str], None],
        timeline: Timeline | None = None,
    ) -> None:
        """Prepare to drive.

        `on_workflow_end` receives the workflow of each ended row that made a call; `timeline`
        records when calls begin and end.
        """
        self.executor, self._store = executor, store
        self._on_workflow_end, self._timeline = on_workflow_end, timeline
        self._facts: deque[FlowFact] = deque()
        self._has_facts = asyncio.Event()
        self._end: EndRun | None = None

    def add_fact(self, fact: FlowFact) -> None:
        if self._timeline is not None:
            self._timeline.record_fact(fact, _now_us())
        self._facts.append(fact)
        self._has_facts.set()

    def stop(self) -> None:
        """Begin no new calls; calls in flight end normally."""
        self.add_fact(StopAsked())

    async def drive(self, intake: TableIntake, calls: RunCalls) -> EndRun:
        """Drive the executor until the run ends.

        Raises:
            InvalidFile: the table cannot be read to its end.
        """
        reading = asyncio.create_task(intake.run())
        reading.add_done_callback(lambda _: self._has_facts.set())
        looking = asyncio.create_task(self._watch_pauses())
        try:
            self._perform(self.executor.start(), intake, calls)
            while self._end is None:
                await self._next_facts(reading)
                for _ in range(min(len(self._facts), _FACTS_AT_ONCE)):
                    fact = self._facts.popleft()
                    self._perform(self.executor.handle(fact), intake, calls)
                    if isinstance(fact, CallAnswered | CallBroke):
                        self._finish_if_ended(fact.call)
                await asyncio.sleep(0)
        finally:
            reading.cancel()
            looking.cancel()
        return self._end

    async def _watch_pauses(self) -> None:
        """Report when engines had nothing to do for a whole interval."""
        while True:
            calls = self.executor.figures.calls
            await asyncio.sleep(LOOK_S)
            if calls == self.executor.figures.calls and not self.executor.is_engine_busy:
                self.add_fact(EnginesIdle())

    async def _next_facts(self, reading: asyncio.Task[None]) -> None:
        while not self._facts or self._is_behind():
            if reading.done() and reading.exception() is not None:
                await reading
            if self._facts:
                await asyncio.sleep(_WAIT_S)
                continue
            self._has_facts.clear()
            await self._has_facts.wait()

    def _is_behind(self) -> bool:
        return self._store.backlog > BACKLOG or self._store.backlog_bytes > BACKLOG_BYTES

    def _perform(self, commands: list[FlowCommand], intake: TableIntake, calls: RunCalls) -> None:
        for command in commands:
            match command:
                case IssueCall() | RunFunction() | RunProcessor():
                    if self._timeline is not None:
                        self._timeline.begin_call(command, _now_us())
                    calls.perform(command)
                case TouchPrefix() | DropHeld():
                    calls.perform(command)
                case FetchCached():
                    self._fetch(command)
                case KeepResult() | KeepAnswer() | DropCall():
                    self._keep(command)
                case ReadRows(count):
                    intake.request_rows(0, count)
                case ReadGroups(count):
                    intake.request_rows(1, count)
                case EndRun():
                    self._end = command
                case _:
                    self._end_row(command, intake, calls)

    def _finish_if_ended(self, call: int) -> None:
        if not self.executor.is_in_flight(call):  # no other attempt follows
            self._store.finish_call(call)

    def _fetch(self, command: FetchCached) -> None:
        call = command.call

        def found(cached: CachedValue | None) -> None:
            value = None if cached is None else cached.value
            self.add_fact(CacheAnswered(call, cached is not None, value))

        self._store.find(call, command.signature, found)

    def _keep(self, command: KeepResult | KeepAnswer | DropCall) -> None:
        match command:
            case DropCall(call):
                self._store.finish_call(call)
            case KeepAnswer(signature, text):
                self._store.store(signature, text)
            case KeepResult(stage, node, row, signature, value):
                shared, until_end = command.store or command.origin != "called", command.until_end
                self._store.keep_result(
                    stage, row, node, signature, value, shared=shared, until_end=until_end
                )
                if command.store:
                    self._store.store(signature, value)

    def _end_row(
        self,
        command: WriteRow | FailRow | DropRow | GatherRow,
        intake: TableIntake,
        calls: RunCalls,
    ) -> None:
        stage, row = 0 if isinstance(command, GatherRow) else command.stage, command.row
        digest = intake.digest_of(stage, row)
        match command:
            case WriteRow():
                self._store.end_row(stage, row, "written", digest, command.values)
            case FailRow():
                self._store.end_row(stage, row, "failed", digest, command.error, node=command.node)
            case DropRow():
                self._store.end_row(stage, row, "dropped", digest, None)
            case GatherRow():
                self._store.end_row(0, row, "gathered", digest, command.value, key=command.key)
        if (workflow := calls.finish_row(stage, row)) is not None:
            self._on_workflow_end(workflow)


def _now_us() -> int:
    return time.monotonic_ns() // 1000


class RunProgress(msgspec.Struct, frozen=True):
    """Progress of this session: expected rows, and rows that need no more work."""

    rows: int | None = None
    ended: int = 0
    ended_before: int = 0
    elapsed_s: float = 0.0
    figures: dict[str, int] = {}
    waits_for: str = ""


def added_figures(before: Mapping[str, int], now: Mapping[str, int]) -> dict[str, int]:
    """Return the usage and savings of earlier sessions and of this one together."""
    spent = {name: before.get(name, 0) + now.get(name, 0) for name in _SPENT_FIGURES}
    return {name: value for name, value in spent.items() if value}


def added_fallbacks(
    before: Mapping[str, Fallback], now: Mapping[str, Fallback]
) -> dict[str, Fallback]:
    found = dict(before)
    for name, each in now.items():
        found[name] = found[name].plus(each) if name in found else each
    return found


class RunSession:
    def __init__(
        self, driver: RunDriver, intake: TableIntake, store: ResultStore, table: InputTable
    ) -> None:
        self.driver, self.intake = driver, intake
        self._store, self._table = store, table
        self._ended_before = store.outcomes(0, _ALL)

    @property
    def observation(self) -> FlowObservation:
        return self.driver.executor.observation

    def progress(self, elapsed_s: float) -> RunProgress:
        figures, read = self._now(), self.intake.read[0]
        rows = read if self.intake.is_at_end else self._table.expected_rows(read)
        before = self.intake.ended_before
        ended = before + sum(figures.get(name, 0) for name in ENDED_ROWS)
        return RunProgress(rows, ended, before, elapsed_s, figures)

    def figures(self, before: Mapping[str, int]) -> dict[str, int]:
        """Return usage and savings of all sessions, and the rows by outcome.

        Rows are not counted again, so the figures are approximate.
        """
        now, ended = self._now(), {**self._ended_before, "failed": 0}
        rows = {name: ended.get(name, 0) + now.get(name, 0) for name in ENDED_ROWS}
        return {"rows": self.intake.read[0], **rows, **added_figures(before, now)}

    def final_figures(self, before: Mapping[str, int]) -> dict[str, int]:
        """Return the same figures, with rows counted exactly: a second for some million rows."""
        ends = [self._store.outcomes(stage, rows) for stage, rows in enumerate(self.intake.read)]
        rows = {name: sum(each.get(name, 0) for each in ends) for name in ENDED_ROWS}
        return {"rows": self.intake.read[0], **rows, **added_figures(before, self._now())}

    def fallbacks(self, before: Mapping[str, Fallback]) -> dict[str, Fallback]:
        """Return the rows of all sessions that continued without a value, by operator."""
        return added_fallbacks(before, self.observation.fallbacks)

    def _now(self) -> dict[str, int]:
        figures = msgspec.structs.asdict(self.driver.executor.figures)
        return {name: value for name, value in figures.items() if value}
