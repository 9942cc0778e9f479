"""Executor of a plan: facts in, commands out. It has no clock, no engine and no file.

It streams: rows are asked for as calls end, so that its memory does not grow with the table, but
with its windows (`windows.py`) and its memo. Each row ends with exactly one command;
its results come before it, for a journal, from which a later session resumes (`facts.Known`).
"""

from collections import deque
from collections.abc import Iterator

from kairos.workflows.compile.kept_order import RunEngines, kept_order
from kairos.workflows.compile.operators import Generation, Processing, RegisteredCall
from kairos.workflows.compile.passes.order import CallOrder
from kairos.workflows.compile.passes.prefill import MOST_ROWS
from kairos.workflows.compile.pipeline import Plan
from kairos.workflows.execute.behaviours import WantsCall, WantsPrefill
from kairos.workflows.execute.commands import (
    DropRow,
    EndRun,
    FailRow,
    FlowCommand,
    GatherRow,
    ReadGroups,
    ReadRows,
    TouchPrefix,
    WriteRow,
)
from kairos.workflows.execute.evaluation import Evaluation
from kairos.workflows.execute.facts import (
    CacheAnswered,
    CallAnswered,
    CallBroke,
    CapacityTold,
    EnginesIdle,
    FlowFact,
    GroupRead,
    GroupsEnded,
    InputEnded,
    ItemsFinished,
    OperatorsOpened,
    PrefixTouched,
    RowRead,
    RowsAwaited,
    RowUnreadable,
    StopAsked,
)
from kairos.workflows.execute.flight import Flight
from kairos.workflows.execute.flights import Flights
from kairos.workflows.execute.frames import ABSENT, IsSpent, OpenRow, ValueFrame, bounds_of, never
from kairos.workflows.execute.limits import FlowFigures, FlowLimits
from kairos.workflows.execute.observation import FlowObservation
from kairos.workflows.execute.prefills import PrefillsAhead
from kairos.workflows.execute.prefix_touches import PrefixTouches
from kairos.workflows.execute.program import compile_stage
from kairos.workflows.execute.trials import TrialRow, begin_items
from kairos.workflows.execute.windows import CallWindow, OperatorGate, RowIntake


class Executor:
    """Executor of one session of a run; only `start`, once, and `handle` change its state.

    The same facts give the same commands, unless `is_spent` stops a row that computes for too long.
    """

    def __init__(self, plan: Plan, limits: FlowLimits, is_spent: IsSpent = never) -> None:
        """Prepare a plan. `is_spent`: asked before each step of a bounded row."""
        self._limits, self._is_spent = limits, is_spent
        self.figures, self.observation = FlowFigures(), FlowObservation()
        self._out: list[FlowCommand] = []
        self._scopes = [compile_stage(plan, stage) for stage in range(1 + bool(plan.group))]
        self._intakes = [RowIntake(limits) for _ in self._scopes]
        self._plan = plan
        # First rows, from which the order is found; None: it was found, or is not needed.
        seeks = plan.passes.order and limits.kv_tokens is not None and limits.max_open_rows != 1
        self._first: list[RowRead] | None = [] if seeks else None
        self._held_back: deque[RowRead] = deque()  # first rows, opened later by the order
        self._touches = PrefixTouches(plan.static_prefixes, limits)
        self._stage = 0
        self._awaiting = False  # for rows that are delayed
        self._stopping = False
        self._ended = False
        self._window = CallWindow(limits, self._issue_call)
        self._prefills = PrefillsAhead(
            plan.prefills, limits, self._has_room, self.figures, self._out
        )
        self._evaluation = Evaluation(self._request_value, self._finish_row, self._fail_row)
        self._flights = Flights(
            plan,
            limits.memo_bytes,
            self._evaluation,
            figures=self.figures,
            observation=self.observation,
            out=self._out,
            ready=self._window.push_ready,
            grew=self._grow_row,
        )

    @property
    def gate(self) -> OperatorGate:
        """Return the calls wanted by operator; for reading only."""
        return self._window.gate

    @property
    def is_engine_busy(self) -> bool:
        """Return whether LLM calls are in flight, or ready."""
        return self._window.calls > 0

    @property
    def is_reading(self) -> bool:
        """Return whether rows were asked for and have not come."""
        return any(each.asked for each in self._intakes)

    def is_in_flight(self, call: int) -> bool:
        """Return whether a call has no result yet."""
        return self._flights[call] is not None

    def set_order(self, order: CallOrder) -> None:
        """Order calls so from now on. Before `start`: no order is looked for."""
        self._first = None
        self._window.set_order(order)
        self._intakes[0].set_order(order)

    def start(self) -> list[FlowCommand]:
        return self._advance()

    def handle(self, fact: FlowFact) -> list[FlowCommand]:
        """Apply a fact; return the commands, in order. Facts after EndRun are ignored."""
        if self._ended:
            return []
        match fact:
            case RowRead() | GroupRead() | RowUnreadable() | InputEnded() | GroupsEnded():
                self._read_input(fact)
            case CallAnswered() | CallBroke() | ItemsFinished():
                self._on_call_fact(fact)
            case CacheAnswered():
                self._flights.on_cache_answer(fact)
            case RowsAwaited() | EnginesIdle() | PrefixTouched():
                self._on_pause(fact)
            case CapacityTold(calls=calls):
                self._window.resize(calls)
                for intake in self._intakes:
                    intake.resize(calls)
            case OperatorsOpened(operators=operators):
                self._window.open_operators(operators)
            case StopAsked():
                self._stopping = True
        return self._advance()

    def _advance(self) -> list[FlowCommand]:
        while True:
            if self._may_begin:
                self._begin_row(self._held_back.popleft())
            self._step()
            if not self._may_begin:
                break
        commands = list(self._out)
        self._out.clear()
        return commands

    @property
    def _may_begin(self) -> bool:
        return bool(self._held_back) and self._intakes[0].may_open

    def _step(self) -> None:
        self._evaluation.run()
        if not self._stopping:
            self._window.release_calls(self._flights.drop_call)
        if self._stage + 1 < len(self._scopes) and self._intakes[self._stage].done:
            self._stage += 1
        self._touch_between_batches()
        self._ask_for_rows()
        if not self._flights.fetching and (self._awaiting or not self.is_reading):
            self._prefills.issue_due()  # calls needed now went first
        self._finish_if_done()
        self.figures.open = sum(each.open for each in self._intakes)
        self.figures.in_flight = self._window.in_flight

    def _read_input(
        self, fact: RowRead | GroupRead | RowUnreadable | InputEnded | GroupsEnded
    ) -> None:
        intake = self._intakes[self._stage]
        are_slow, self._awaiting = self._awaiting, False
        if isinstance(fact, InputEnded | GroupsEnded):
            self._find_order()
            # It may be told again when another stage runs.
            self._intakes[isinstance(fact, GroupsEnded)].end_input()
            return
        self.figures.read += 1
        if isinstance(fact, RowUnreadable):
            intake.count_read()
            self.figures.failed += 1
            self._out.append(FailRow(self._stage, fact.row, "", fact.error))
        elif isinstance(fact, RowRead) and self._first is not None:
            self._first.append(fact)
        else:
            self._begin_row(fact)
        if self._first and (are_slow or len(self._first) >= intake.asked):
            self._find_order()

    def _find_order(self) -> None:
        """Find the order of calls from the first rows, and begin these rows."""
        if not self._first:
            return
        limits = self._limits
        assert limits.kv_tokens is not None
        released = limits.at_once or 2 * limits.capacity
        sequences = min(limits.capacity, released)
        pool = RunEngines(limits.instances, limits.kv_tokens, sequences, released)
        self._held_back.extend(self._first)
        self.set_order(kept_order(self._plan, [each.values for each in self._first], pool))

    def _begin_row(self, fact: RowRead | GroupRead) -> None:
        given: object = (
            fact.values if isinstance(fact, RowRead) else {"key": fact.key, "items": fact.items}
        )
        self._intakes[self._stage].open_row(fact.size_bytes)
        row = OpenRow(self._stage, fact.row, given, fact.known, fact.size_bytes)
        row.bounds = bounds_of(self._limits, self._is_spent)
        self._evaluation.begin_row(row, self._scopes[self._stage])

    def _touch_between_batches(self) -> None:
        """Touch static prefixes between batches, when engines have nothing to do.

        Not on engines that switch models: they lose their caches with each switch.
        """
        if not self._awaiting or self._stopping or not self.gate.is_open_to_all:
            return
        if any(each.open for each in self._intakes):
            return
        self._touch_all(self._touches.begin_pause())

    def _on_pause(self, fact: RowsAwaited | EnginesIdle | PrefixTouched) -> None:
        """Touch static prefixes while engines idle.

        Not ones never used if results of earlier runs were found: their calls may never come.
        """
        if isinstance(fact, RowsAwaited):
            self._find_order()
            self._awaiting = True
            return
        if isinstance(fact, PrefixTouched):
            self._touches.on_touch_answer(fact.number, fact.cached_tokens)
            return
        if self._stopping or self.is_engine_busy or not self.gate.is_open_to_all:
            return
        is_new = not self.figures.fetched and not self.figures.resumed
        self._touch_all(self._touches.check_pause())
        self._touch_all(self._touches.begin_pause(unused=is_new))

    def _touch_all(self, touches: Iterator[TouchPrefix]) -> None:
        for each in touches:
            self.figures.touched += 1
            self._out.append(each)

    def _ask_for_rows(self) -> None:
        intake = self._intakes[self._stage]
        if self._stopping or self._window.blocked:
            return
        count = intake.rows_to_ask(self._window.wanting - self._flights.fetching)
        if count:
            intake.asked += count
            self._out.append(ReadGroups(count) if self._stage else ReadRows(count))

    def _has_room(self) -> bool:
        """Return whether prefills are sent: few rows are open, and each call has room for one."""
        window, rows = self._window, sum(each.open for each in self._intakes)
        if self._intakes[0].holds_back:
            return False  # few rows are open, although many have come
        return rows <= MOST_ROWS and 2 * window.calls <= window.capacity

    def _finish_if_done(self) -> None:
        waits = self._window.in_flight
        if self._stage + 1 == len(self._scopes) and self._intakes[-1].done:
            # Calls of rows that have ended may still be in flight.
            self._finish_run(EndRun("done"))
        elif self._stopping and not waits:
            self._finish_run(EndRun("stopped"))
        elif self._window.blocked and not waits and not self._flights.fetching:
            self._finish_run(EndRun("budget"))

    def _finish_run(self, command: EndRun) -> None:
        self._ended = True
        self._out.append(command)

    def _request_value(self, frame: ValueFrame, slot: int, wants: WantsCall | WantsPrefill) -> None:
        if isinstance(wants, WantsPrefill):
            self._prefills.add_ready(frame.row, wants)
            self._evaluation.settle(frame, slot, ABSENT)
            return
        self._flights.request_value(frame, slot, wants)

    def _issue_call(self, flight: Flight) -> None:
        params, figures = flight.operator.params, self.figures
        figures.retried += flight.attempt > 1
        figures.calls += isinstance(params, Generation)
        figures.functions += isinstance(params, RegisteredCall)
        figures.processed += isinstance(params, Processing)
        self._out.append(self._flights.attempt_command(flight))
        self._prefills.on_call_issued(flight)

    def _on_call_fact(self, fact: CallAnswered | CallBroke | ItemsFinished) -> None:
        flight = self._flights[fact.call]
        assert flight is not None, f"call {fact.call} is not in flight"
        match fact:
            case CallAnswered():
                self._on_answer(flight, fact)
            case CallBroke():
                self._on_failure(flight, fact)
            case ItemsFinished(first=first, items=items):
                begin_items(self._evaluation, flight, first, items)

    def _on_answer(self, flight: Flight, fact: CallAnswered) -> None:
        self.figures.prompt_tokens += fact.prompt_tokens
        self.figures.completion_tokens += fact.completion_tokens
        self.figures.cached_tokens += fact.cached_tokens
        if isinstance(flight.operator.params, Generation):
            self.observation.record_answer(flight.operator.name, fact)
            self._touches.count_call(flight.operator.name, fact)
        elif isinstance(flight.operator.params, RegisteredCall | Processing):
            self.observation.record_duration(flight.operator.name, fact)
        self._window.finish_call(flight, fact.prompt_tokens + fact.completion_tokens)
        if fact.cut is not None:
            self.figures.cut += 1
            if self._retry_larger(flight):
                return
        self._flights.finish_call(flight, fact)

    def _retry_larger(self, flight: Flight) -> bool:
        """Repeat the call of a cut answer with twice the tokens; return false if it may not be."""
        params, content = flight.operator.params, flight.wants.content
        most = content.get("max_tokens")
        if not isinstance(params, Generation) or params.on_cut != "retry":
            return False
        if not isinstance(most, int) or flight.attempt > flight.operator.retries:
            return False
        larger = {**content, "max_tokens": 2 * most}
        flight.wants = WantsCall(larger, flight.wants.signature)
        flight.attempt += 1
        self._window.push_ready(flight)
        return True

    def _on_failure(self, flight: Flight, fact: CallBroke) -> None:
        self._window.finish_call(flight, 0)
        if fact.lost and self._flights.remake_lost(flight, fact.lost):
            return
        if fact.retry and flight.attempt <= flight.operator.retries:
            flight.attempt += 1
            self._window.push_ready(flight)
        else:
            self._flights.fail_call(flight, fact.error)

    def _finish_row(self, row: OpenRow, value: object) -> None:
        self._close_row(row)
        if row.instead:
            self.observation.count_fallbacks(row.row, row.instead)
            ways = {how for how, _ in row.instead.values()}
            self.figures.skipped += "skip" in ways
            self.figures.defaulted += "default" in ways
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

    def _fail_row(self, row: OpenRow, node: str, error: str) -> None:
        if isinstance(row, TrialRow):
            return  # it was only tried ahead
        self._close_row(row)
        self.figures.failed += 1
        self._out.append(FailRow(row.stage, row.row, node, error))

    def _grow_row(self, row: OpenRow, size_bytes: int) -> None:
        row.size_bytes += size_bytes
        self._intakes[row.stage].grow_row(size_bytes, row.size_bytes)

    def _close_row(self, row: OpenRow) -> None:
        self._flights.close_row(row)
        self._prefills.close_row(row)
        self._intakes[row.stage].close_row(row.size_bytes)
