"""The executor of a plan: facts in, commands out. It has no clock, no engine and no file.

It streams: rows are asked for as calls end, so that what it holds does not grow with the table, but
with its windows (`windows.py`, `intake.py`) and its memo. Each row ends with exactly one command;
results come before it, for a journal, from which a later session goes on (`facts.Known`).
"""

from kairos.execution.behaviours import WantsCall
from kairos.execution.commands import (
    DropRow,
    EndRun,
    FailRow,
    FlowCommand,
    GatherRow,
    IssueCall,
    ReadGroups,
    ReadRows,
    RunFunction,
    WriteRow,
)
from kairos.execution.evaluation import Evaluation
from kairos.execution.facts import (
    CacheAnswered,
    CallAnswered,
    CallBroke,
    CapacityTold,
    FlowFact,
    GroupRead,
    GroupsEnded,
    InputEnded,
    OperatorsOpened,
    RowRead,
    RowUnreadable,
    StopAsked,
)
from kairos.execution.flights import Flight, Flights
from kairos.execution.frames import ABSENT, OpenRow, ValueFrame
from kairos.execution.intake import RowIntake, fitting
from kairos.execution.limits import FlowFigures, FlowLimits
from kairos.execution.memo import ResultMemo
from kairos.execution.observation import FlowObservation
from kairos.execution.operator_gate import OperatorGate
from kairos.execution.program import compile_stage
from kairos.execution.windows import CallWindow
from kairos.plan.operators import Generation, RegisteredCall
from kairos.plan.pipeline import Plan

_FIRST_DELAY_US, _LONGEST_DELAY_US = 500_000, 30_000_000


class Executor:
    """Owns all state of a run's session. Only `begin`, once, and `handle` change it. The same facts
    give the same commands."""

    def __init__(self, plan: Plan, limits: FlowLimits) -> None:
        self.figures, self.observation = FlowFigures(), FlowObservation()
        self._out: list[FlowCommand] = []
        self._scopes = [compile_stage(plan, stage) for stage in range(1 + bool(plan.group))]
        self._intakes = [RowIntake(fitting(plan, limits)) for _ in self._scopes]
        self._stage = 0
        self._stopping = False
        self._ended = False
        self._window = CallWindow(limits, plan.order, self._issue)
        self._evaluation = Evaluation(self._want, self._row_ended, self._row_broke)
        self._flights = Flights(
            share=plan.passes.cse,
            memo=ResultMemo(limits.memo_bytes),
            figures=self.figures,
            observation=self.observation,
            out=self._out,
            ready=self._window.push,
        )

    @property
    def gate(self) -> OperatorGate:
        """How many calls of each operator are wanted: to be read alone."""
        return self._window.gate

    @property
    def is_reading(self) -> bool:
        """Rows were asked for and have not come."""
        return any(each.asked for each in self._intakes)

    def begin(self) -> list[FlowCommand]:
        return self._go_on()

    def handle(self, fact: FlowFact) -> list[FlowCommand]:
        """Apply one fact; what is to be done about it, in order. Facts after EndRun are idle."""
        if self._ended:
            return []
        match fact:
            case RowRead() | GroupRead() | RowUnreadable() | InputEnded() | GroupsEnded():
                self._take(fact)
            case CallAnswered():
                self._answered(fact)
            case CallBroke():
                self._call_broke(fact)
            case CacheAnswered():
                self._flights.cache_answered(self._evaluation, fact)
            case CapacityTold(calls=calls):
                self._window.resize(calls)
            case OperatorsOpened(operators=operators):
                self._window.open(operators)
            case StopAsked():
                self._stopping = True
        return self._go_on()

    def _go_on(self) -> list[FlowCommand]:
        self._evaluation.run()
        if not self._stopping:
            self._window.release(self._flights.forget)
        self._next_stage()
        self._read()
        self._end()
        self.figures.open = sum(each.open for each in self._intakes)
        self.figures.in_flight = self._window.in_flight
        commands = list(self._out)
        self._out.clear()
        return commands

    def _take(self, fact: RowRead | GroupRead | RowUnreadable | InputEnded | GroupsEnded) -> None:
        intake = self._intakes[self._stage]
        if isinstance(fact, InputEnded | GroupsEnded):
            # It may be told again, when another stage goes on.
            self._intakes[isinstance(fact, GroupsEnded)].exhausted()
            return
        self.figures.read += 1
        if isinstance(fact, RowUnreadable):
            intake.unreadable()
            self.figures.failed += 1
            self._out.append(FailRow(self._stage, fact.row, "", fact.error))
            return
        given: object = fact.values if isinstance(fact, RowRead) else _group(fact)
        intake.arrived(fact.size_bytes)
        row = OpenRow(self._stage, fact.row, given, fact.known, fact.size_bytes)
        self._evaluation.begin(row, self._scopes[self._stage])

    def _next_stage(self) -> None:
        if self._stage + 1 < len(self._scopes) and self._intakes[self._stage].done:
            self._stage += 1

    def _read(self) -> None:
        intake = self._intakes[self._stage]
        if self._stopping or self._window.blocked:
            return
        count = intake.room(self._window.wanting - self._flights.fetching)
        if count:
            intake.asked += count
            self._out.append(ReadGroups(count) if self._stage else ReadRows(count))

    def _end(self) -> None:
        waits = self._window.in_flight
        if self._stage + 1 == len(self._scopes) and self._intakes[-1].done:
            # Calls that no row wants any more may still be in flight.
            self._end_with(EndRun("done"))
        elif self._stopping and not waits:
            self._end_with(EndRun("stopped"))
        elif self._window.blocked and not waits and not self._flights.fetching:
            self._end_with(EndRun("budget"))

    def _end_with(self, command: EndRun) -> None:
        self._ended = True
        self._out.append(command)

    def _want(self, frame: ValueFrame, slot: int, wants: WantsCall) -> None:
        self._flights.want(self._evaluation, frame, slot, wants)

    def _issue(self, flight: Flight) -> None:
        frame, slot = flight.leader
        node, row = frame.node(slot), frame.row
        delay_us = _delay_us(flight.attempt)
        params, wants = flight.operator.params, flight.wants
        self.figures.retried += flight.attempt > 1
        if isinstance(params, Generation):
            self.figures.calls += 1
            self._out.append(
                IssueCall(
                    call=flight.number,
                    stage=row.stage,
                    node=node,
                    row=row.row,
                    attempt=flight.attempt,
                    operator=flight.operator.name,
                    model=params.model,
                    body=wants.content,
                    signature=wants.signature,
                    delay_us=delay_us,
                )
            )
            return
        assert isinstance(params, RegisteredCall)
        self.figures.functions += 1
        effect = params.purity == "effect"
        self._out.append(
            RunFunction(
                call=flight.number,
                stage=row.stage,
                node=node,
                row=row.row,
                attempt=flight.attempt,
                operator=flight.operator.name,
                function=params.function,
                arguments=wants.content,
                signature=wants.signature,
                idempotency_key=f"{row.stage}/{node}/{row.row}" if effect else None,
                delay_us=delay_us,
            )
        )

    def _answered(self, fact: CallAnswered) -> None:
        flight = self._flights[fact.call]
        assert flight is not None, f"call {fact.call} is not in flight"
        self.figures.prompt_tokens += fact.prompt_tokens
        self.figures.completion_tokens += fact.completion_tokens
        self.figures.cached_tokens += fact.cached_tokens
        if isinstance(flight.operator.params, Generation):
            self.observation.answered(flight.operator.name, fact)
        self._window.ended(flight, fact.prompt_tokens + fact.completion_tokens)
        self._flights.answered(self._evaluation, flight, fact)

    def _call_broke(self, fact: CallBroke) -> None:
        flight = self._flights[fact.call]
        assert flight is not None, f"call {fact.call} is not in flight"
        self._window.ended(flight, 0)
        if fact.retry and flight.attempt <= flight.operator.retries:
            flight.attempt += 1
            self._window.push(flight)
        else:
            self._flights.broke(self._evaluation, flight, fact.error)

    def _row_ended(self, row: OpenRow, value: object) -> None:
        self._close(row)
        if value is ABSENT:
            self.figures.dropped += 1
            self._out.append(DropRow(row.stage, row.row))
        elif isinstance(value, tuple):
            self.figures.gathered += 1
            self._out.append(GatherRow(row.row, *value))
        else:
            assert isinstance(value, dict)
            self.figures.written += 1
            self._out.append(WriteRow(row.stage, row.row, value))

    def _row_broke(self, row: OpenRow, node: str, error: str) -> None:
        self._close(row)
        self.figures.failed += 1
        self._out.append(FailRow(row.stage, row.row, node, error))

    def _close(self, row: OpenRow) -> None:
        self._intakes[row.stage].closed(row.size_bytes)


def _group(fact: GroupRead) -> dict[str, object]:
    return {"key": fact.key, "items": fact.items}


def _delay_us(attempt: int) -> int:
    """Before the second attempt half a second, then twice as long each time."""
    if attempt == 1:
        return 0
    return min(_FIRST_DELAY_US << (attempt - 2), _LONGEST_DELAY_US)
