"""A flow as the client of a simulated pool: its executor, told in virtual time what its calls came
to. Rows are read and written in no time. Pure functions are called, in no time; others give null,
since a simulation has no effects."""

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from functools import partial

import msgspec

from kairos.errors import KairosError
from kairos.events import Arrived, Record, WorkflowEnded
from kairos.execution.commands import (
    DropRow,
    EndRun,
    FailRow,
    FetchCached,
    FlowCommand,
    GatherRow,
    IssueCall,
    ReadGroups,
    ReadRows,
    RunFunction,
    WriteRow,
)
from kairos.execution.executor import Executor
from kairos.execution.facts import (
    CacheAnswered,
    CallAnswered,
    CallBroke,
    FlowFact,
    GroupRead,
    GroupsEnded,
    InputEnded,
    RowRead,
)
from kairos.execution.limits import FlowLimits
from kairos.model import Request
from kairos.plan.check import every
from kairos.plan.operators import Generation
from kairos.plan.pipeline import Plan
from kairos.sim.clock import VirtualClock
from kairos.sim.engine.engine_calls import EngineCall
from kairos.sim.flow_answers import answer, tokens_of
from kairos.sim.flow_prompts import answered_prompt, prompt_of
from kairos.sim.users import MODEL, TENANT
from kairos.workload.prompt import Prompt, length, prefix_hashes
from kairos.workload.retries import is_tried_again

Run = Callable[[RunFunction], object]


class _Made(msgspec.Struct, frozen=True):
    """A call that was made and has not ended."""

    command: IssueCall
    prompt: Prompt
    text: str


class FlowClient:
    """`table`: rows of it, by their columns. `run`: what a function gives; raises KairosError where
    it fails. `ended` says how the run did."""

    def __init__(
        self,
        plan: Plan,
        limits: FlowLimits,
        table: Iterator[Mapping[str, object]],
        run: Run,
        clock: VirtualClock,
        feed: Callable[[Arrived | WorkflowEnded], None],
        *,
        models: Mapping[str, str] | None = None,
        arrives_at: Callable[[int], int] = lambda _: 0,
    ) -> None:
        """`models`: what operators ask for by another name than the only model; `arrives_at`: from
        when on a row of the table can be read, in µs, later rows no earlier."""
        self.executor = Executor(plan, limits)
        self.left, self.retries = 1, 0
        self.failed: dict[str, str] = {}
        self.ended: str | None = None
        self.ended_at_us: list[int] = []  # of rows that did, at stage 0 unless they were gathered
        self._name, self._table = plan.declaration.name, enumerate(table)
        self._next_row: tuple[int, Mapping[str, object]] | None = None
        self._run, self._clock, self._feed = run, clock, feed
        self._generations = {
            each.name: each.params
            for each in every(plan.declaration.operators)
            if isinstance(each.params, Generation)
        }
        self._models, self._arrives_at = models or {}, arrives_at
        self._awaited = 0  # rows that were asked for and have not arrived
        self._made: dict[str, _Made] = {}
        self._groups: dict[str, list[tuple[int, object]]] = {}
        self._left_groups: Iterator[tuple[int, tuple[str, list[object]]]] | None = None
        self._facts: deque[FlowFact] = deque()
        clock.call_at(clock.now(), self._begin)

    def lengths(self, request_id: str) -> tuple[int, int]:
        made = self._made[request_id]
        return length(made.prompt), tokens_of(made.text)

    def engine_call(self, request_id: str, priority: int = 0) -> EngineCall:
        made = self._made[request_id]
        return EngineCall(
            id=request_id,
            prompt=made.prompt,
            completion_tokens=tokens_of(made.text),
            whole=answered_prompt(made.command.body, made.text),
            priority=priority,
        )

    def identified(self, record: Record) -> Record:
        return record

    def answered(self, request_id: str) -> None:
        prompt_tokens, completion_tokens = self.lengths(request_id)
        made = self._made.pop(request_id)
        self.tell(CallAnswered(made.command.call, made.text, prompt_tokens, completion_tokens))

    def refused(self, request_id: str, error: KairosError) -> None:
        made = self._made.pop(request_id)
        self.retries += 1
        broke = CallBroke(made.command.call, str(error), retry=is_tried_again(error.status))
        self._clock.call_at(self._clock.now(), partial(self.tell, broke))

    def _begin(self) -> None:
        self._perform(self.executor.begin())
        self._go_on()

    def tell(self, fact: FlowFact) -> None:
        self._facts.append(fact)
        self._go_on()

    def _go_on(self) -> None:
        while self._facts:
            self._perform(self.executor.handle(self._facts.popleft()))

    def _perform(self, commands: list[FlowCommand]) -> None:
        for command in commands:
            match command:
                case ReadRows(count=count):
                    self._read(count)
                case ReadGroups(count=count):
                    self._read_groups(count)
                case IssueCall():
                    at = self._clock.now() + command.delay_us
                    self._clock.call_at(at, partial(self._issue, command))
                case RunFunction():
                    self._facts.append(self._ran(command))
                case FetchCached(call=call):
                    self._facts.append(CacheAnswered(call, hit=False))
                case GatherRow() | WriteRow() | FailRow() | DropRow():
                    self._row_ended(command)
                case EndRun(reason=reason):
                    self.ended, self.left = reason, 0
                    self._clock.stop()

    def _read(self, count: int) -> None:
        """Those that are there; the others when they arrive."""
        is_waiting, self._awaited = self._awaited > 0, self._awaited + count
        if not is_waiting:
            self._read_arrived()

    def _read_arrived(self) -> None:
        while self._awaited:
            if self._next_row is None:
                self._next_row = next(self._table, None)
            if self._next_row is None:
                self._awaited = 0
                self._facts.append(InputEnded())
                return
            at = self._arrives_at(self._next_row[0])
            if at > self._clock.now():
                self._clock.call_at(at, self._rows_arrived)
                return
            self._facts.append(RowRead(*self._next_row))
            self._next_row, self._awaited = None, self._awaited - 1

    def _rows_arrived(self) -> None:
        self._read_arrived()
        self._go_on()

    def _read_groups(self, count: int) -> None:
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
                self._facts.append(GroupsEnded())
                return
            number, (key, items) = read
            self._facts.append(GroupRead(number, key, items))

    def _ran(self, command: RunFunction) -> FlowFact:
        try:
            return CallAnswered(command.call, self._run(command))
        except KairosError as error:
            return CallBroke(command.call, str(error), retry=False)

    def _row_ended(self, command: GatherRow | WriteRow | FailRow | DropRow) -> None:
        stage = 0
        if isinstance(command, GatherRow):
            self._groups.setdefault(command.key, []).append((command.row, command.value))
        else:
            stage = command.stage
            self.ended_at_us.append(self._clock.now())
        self._feed(WorkflowEnded(TENANT, f"{stage}.{command.row}"))

    def _issue(self, command: IssueCall) -> None:
        request_id = f"{command.stage}.{command.row}/{command.node}/{command.attempt}"
        text = answer(self._generations[command.operator], command.signature)
        self._made[request_id] = _Made(command, prompt_of(command.body), text)
        try:
            self._feed(Arrived(self._request(request_id)))
        except KairosError as error:
            self.refused(request_id, error)

    def _request(self, request_id: str) -> Request:
        """What a gateway knows of the call."""
        made = self._made[request_id]
        tokens, now = length(made.prompt), self._clock.now()
        limit = made.command.body.get("max_tokens")
        return Request(
            id=request_id,
            tenant=TENANT,
            workflow_id=f"{made.command.stage}.{made.command.row}",
            app=self._name,
            agent=made.command.operator,
            model=self._models.get(made.command.operator, MODEL),
            workflow_started_at=now,
            arrived_at=now,
            prompt_tokens=tokens,
            completion_tokens=limit if isinstance(limit, int) else tokens_of(made.text),
            completion_limit=limit if isinstance(limit, int) else None,
            prefix=prefix_hashes(made.prompt),
            prefix_units=tokens,
        )
