"""Drive an executor: pass facts to it, and its commands on, until it ends the run."""

import asyncio
import time
from collections import deque
from collections.abc import Callable

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
from kairos.workflows.execute.observation import Timeline
from kairos.workflows.run.calls import RunCalls
from kairos.workflows.run.intake import TableIntake
from kairos.workflows.run.result_store import CachedValue, ResultStore

# Unwritten changes of the journal, and their bytes, at which the executor waits for the disk.
BACKLOG, BACKLOG_BYTES = 10_000, 64 << 20
_WAIT_S = 0.05
LOOK_S = 1.0  # between two checks whether engines idle
_FACTS_AT_ONCE = 32  # then other tasks have their turn


class RunDriver:
    """Passes facts to the executor one by one; `tell` adds one, from the loop's thread.

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

    def tell(self, fact: FlowFact) -> None:
        if self._timeline is not None:
            self._timeline.record_fact(fact, _now_us())
        self._facts.append(fact)
        self._has_facts.set()

    def stop(self) -> None:
        """Begin no new calls; calls in flight end normally."""
        self.tell(StopAsked())

    async def drive(self, intake: TableIntake, calls: RunCalls) -> EndRun:
        """Drive the executor until the run ends.

        Raises:
            InvalidFile: the table cannot be read to its end.
        """
        reading = asyncio.create_task(intake.run())
        reading.add_done_callback(lambda _: self._has_facts.set())
        looking = asyncio.create_task(self._look_at_pauses())
        try:
            self._perform(self.executor.start(), intake, calls)
            while self._end is None:
                await self._next_facts(reading)
                for _ in range(min(len(self._facts), _FACTS_AT_ONCE)):
                    fact = self._facts.popleft()
                    self._perform(self.executor.handle(fact), intake, calls)
                    if isinstance(fact, CallAnswered | CallBroke):
                        self._call_told(fact.call)
                await asyncio.sleep(0)
        finally:
            reading.cancel()
            looking.cancel()
        return self._end

    async def _look_at_pauses(self) -> None:
        """Report when engines had nothing to do for a whole interval."""
        while True:
            calls = self.executor.figures.calls
            await asyncio.sleep(LOOK_S)
            if calls == self.executor.figures.calls and not self.executor.is_engine_busy:
                self.tell(EnginesIdle())

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
                    calls.begin(command)
                case TouchPrefix() | DropHeld():
                    calls.begin(command)
                case FetchCached():
                    self._fetch(command)
                case KeepResult() | KeepAnswer() | DropCall():
                    self._keep(command)
                case ReadRows(count):
                    intake.want(0, count)
                case ReadGroups(count):
                    intake.want(1, count)
                case EndRun():
                    self._end = command
                case _:
                    self._end_row(command, intake, calls)

    def _call_told(self, call: int) -> None:
        if not self.executor.is_in_flight(call):  # no other attempt follows
            self._store.ended(call)

    def _fetch(self, command: FetchCached) -> None:
        call = command.call

        def found(cached: CachedValue | None) -> None:
            value = None if cached is None else cached.value
            self.tell(CacheAnswered(call, cached is not None, value))

        self._store.find(call, command.signature, found)

    def _keep(self, command: KeepResult | KeepAnswer | DropCall) -> None:
        if isinstance(command, DropCall):
            self._store.ended(command.call)
            return
        if isinstance(command, KeepAnswer):
            self._store.store(command.signature, command.text)
            return
        self._store.keep(
            command.stage,
            command.row,
            command.node,
            command.signature,
            command.value,
            shared=command.store or command.origin != "called",
            until_end=command.until_end,
        )
        if command.store:
            self._store.store(command.signature, command.value)

    def _end_row(
        self,
        command: WriteRow | FailRow | DropRow | GatherRow,
        intake: TableIntake,
        calls: RunCalls,
    ) -> None:
        match command:
            case WriteRow(stage=stage, row=row):
                digest = intake.digest_of(stage, row)
                self._store.end(stage, row, "written", digest, command.values)
            case FailRow(stage=stage, row=row):
                digest = intake.digest_of(stage, row)
                self._store.end(stage, row, "failed", digest, command.error, node=command.node)
            case DropRow(stage=stage, row=row):
                digest = intake.digest_of(stage, row)
                self._store.end(stage, row, "dropped", digest, None)
            case GatherRow(row=row):
                stage, digest = 0, intake.digest_of(0, row)
                self._store.end(0, row, "gathered", digest, command.value, key=command.key)
        if (workflow := calls.end_of(stage, row)) is not None:
            self._on_workflow_end(workflow)


def _now_us() -> int:
    return time.monotonic_ns() // 1000
