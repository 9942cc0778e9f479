"""Executor of a flow whose rows, groups and results are in memory, in virtual time.

Rows arrive and are gathered in groups as from a table. To read and write them, and to fetch results
of earlier runs, takes no time. What a call does is up to a subclass, which gets the commands of
calls and reports their ends.
"""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from functools import partial

from kairos.core import SECOND, PlannedWork
from kairos.workflows.compile.pipeline import Plan
from kairos.workflows.compile.planned_work import plan_work
from kairos.workflows.execute.commands import (
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
    GroupRead,
    GroupsEnded,
    InputEnded,
    ItemsFinished,
    PrefixTouched,
    RowRead,
    RowsAwaited,
)
from kairos.workflows.execute.limits import FlowLimits
from kairos.workflows.execute.observation import Calling, Timeline

LOOK_US = SECOND  # between two looks whether engines idle

Later = Callable[[int, Callable[[], None]], object]


class FlowInMemory(ABC):
    """Run of a plan over rows in memory."""

    def __init__(
        self,
        plan: Plan,
        limits: FlowLimits,
        table: Iterator[Mapping[str, object]],
        now: Callable[[], int],
        call_at: Later,
        arrives_at: Callable[[int], int],
        results: MutableMapping[str, object] | None,
    ) -> None:
        """Prepare the run, which begins at the present instant.

        `table` yields rows, by their columns. `now` returns the time, in µs. `call_at` calls back
        at an instant; callbacks of one instant are called in their order. `arrives_at` returns when
        a row can be read, in µs, later rows no earlier. `results`: of earlier runs, by signature;
        the ones of this run are added.
        """
        self.executor, self.timeline = Executor(plan, limits), Timeline()
        self.failed: dict[str, str] = {}  # why, by stage and row
        self.ended: str | None = None  # why
        self.ended_at_us: dict[tuple[int, int], int] = {}  # by stage and row, unless gathered
        self.written: dict[tuple[int, int], Mapping[str, object]] = {}  # by stage and row
        self._plan, self._now, self._call_at = plan, now, call_at
        self._results: MutableMapping[str, object] = {} if results is None else results
        self._is_looking = False  # a look is to come
        self._facts: deque[FlowFact] = deque()
        self._rows = _MemoryRows(now, call_at, table, arrives_at, self._facts.append, self._go_on)
        call_at(now(), self._begin)

    @abstractmethod
    def declare(self) -> None:
        """Declare the plan, before the run begins."""

    @abstractmethod
    def make_call(self, command: Calling | TouchPrefix) -> None:
        """Make a call after its delay, and report its end at a later callback."""

    @abstractmethod
    def on_row_end(self, stage: int, row: int) -> None:
        """Receive a row that has ended, or a group."""

    @abstractmethod
    def on_run_end(self) -> None:
        """Receive the end of the run; `ended` says why."""

    def planned_work(self) -> PlannedWork | None:
        """Return the calls that its rows will make, for `declare`; None: they are not known."""
        return plan_work(self._plan)

    def answer_call(
        self,
        call: int,
        value: object,
        tokens: tuple[int, int, int] = (0, 0, 0),
        took_us: int | None = None,
    ) -> None:
        """Report the result of a call. `tokens`: of prompt and answer, and cached ones."""
        self.handle_fact(CallAnswered(call, value, *tokens, took_us=took_us))

    def break_call(self, call: int, error: str, *, retry: bool) -> None:
        """Report the failure of a call."""
        self.handle_fact(CallBroke(call, error, retry=retry))

    def report_items(self, call: int, first: int, items: list[object]) -> None:
        """Report items that the answer to a call has by now, from the first of them on."""
        self.handle_fact(ItemsFinished(call, first, items))

    def answer_touch(self, command: TouchPrefix, cached_tokens: int) -> None:
        """Report that a prefix was touched."""
        if command.number is not None:
            self.handle_fact(PrefixTouched(command.number, cached_tokens))

    def handle_fact(self, fact: FlowFact) -> None:
        self._facts.append(fact)
        self._go_on()

    def _begin(self) -> None:
        self.declare()
        self._perform(self.executor.start())
        self._go_on()

    def _go_on(self) -> None:
        while self._facts:
            fact = self._facts.popleft()
            self.timeline.record_fact(fact, self._now())
            self._perform(self.executor.handle(fact))
        if not self._is_looking and not self.executor.is_engine_busy and self.ended is None:
            self._is_looking = True
            calls = self.executor.figures.calls
            self._call_at(self._now() + LOOK_US, partial(self._look, calls))

    def _look(self, calls: int) -> None:
        """Report that engines had nothing to do since the look before."""
        self._is_looking = False
        if self.executor.figures.calls == calls and not self.executor.is_engine_busy:
            self._facts.append(EnginesIdle())
        self._go_on()

    def _perform(self, commands: list[FlowCommand]) -> None:
        for command in commands:
            match command:
                case ReadRows(count=count):
                    self._rows.read_rows(count)
                case ReadGroups(count=count):
                    self._rows.read_groups(count)
                case IssueCall() | RunFunction() | RunProcessor():
                    self.timeline.begin_call(command, self._now())
                    self.make_call(command)
                case TouchPrefix():
                    self.make_call(command)
                case FetchCached(call=call, signature=signature):
                    hit, value = signature in self._results, self._results.get(signature)
                    self._facts.append(CacheAnswered(call, hit, value))
                case (
                    KeepResult(signature=signature, value=value, store=True)
                    | KeepAnswer(signature=signature, text=value)
                ):
                    self._results[signature] = value
                case GatherRow() | WriteRow() | FailRow() | DropRow():
                    self._end_row(command)
                case EndRun(reason=reason):
                    self.ended = reason
                    self.on_run_end()

    def _end_row(self, command: GatherRow | WriteRow | FailRow | DropRow) -> None:
        stage = 0
        if isinstance(command, GatherRow):
            self._rows.gather_row(command)
        else:
            stage = command.stage
            self.ended_at_us[stage, command.row] = self._now()
            if isinstance(command, WriteRow):
                self.written[stage, command.row] = command.values
            elif isinstance(command, FailRow):
                self.failed[f"{stage}.{command.row}"] = f"{command.node}: {command.error}"
        self.on_row_end(stage, command.row)


class _MemoryRows:
    """Rows of a table as they arrive, and the groups that rows are gathered in."""

    def __init__(
        self,
        now: Callable[[], int],
        call_at: Later,
        table: Iterator[Mapping[str, object]],
        arrives_at: Callable[[int], int],
        put: Callable[[FlowFact], None],
        go_on: Callable[[], None],
    ) -> None:
        """Create it. `put` queues facts; `go_on` is called if nothing else would handle them."""
        self._now, self._call_at = now, call_at
        self._table, self._arrives_at = enumerate(table), arrives_at
        self._put, self._go_on = put, go_on
        self._next_row: tuple[int, Mapping[str, object]] | None = None
        self._awaited = 0  # rows that were asked for and have not arrived
        self._groups: dict[str, list[tuple[int, object]]] = {}
        self._left_groups: Iterator[tuple[int, tuple[str, list[object]]]] | None = None

    def read_rows(self, count: int) -> None:
        """Read `count` rows: the arrived ones now, the others when they arrive."""
        is_waiting, self._awaited = self._awaited > 0, self._awaited + count
        if not is_waiting:
            self._read_arrived()

    def gather_row(self, command: GatherRow) -> None:
        self._groups.setdefault(command.key, []).append((command.row, command.value))

    def read_groups(self, count: int) -> None:
        if self._left_groups is None:
            first = sorted(self._groups.items(), key=lambda group: min(group[1])[0])
            groups = [
                (key, [value for _, value in sorted(rows, key=lambda row: row[0])])
                for key, rows in first
            ]
            self._left_groups = enumerate(iter(groups))
        for _ in range(count):
            read = next(self._left_groups, None)
            if read is None:
                self._put(GroupsEnded())
                return
            number, (key, items) = read
            self._put(GroupRead(number, key, items))

    def _read_arrived(self) -> None:
        while self._awaited:
            if self._next_row is None:
                self._next_row = next(self._table, None)
            if self._next_row is None:
                self._awaited = 0
                self._put(InputEnded())
                return
            at = self._arrives_at(self._next_row[0])
            if at > self._now():
                self._call_at(at, self._rows_arrived)
                self._put(RowsAwaited())
                return
            self._put(RowRead(*self._next_row))
            self._next_row, self._awaited = None, self._awaited - 1

    def _rows_arrived(self) -> None:
        self._read_arrived()
        self._go_on()
