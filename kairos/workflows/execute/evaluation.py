"""Evaluate open rows: demand goes from outputs to inputs, values flow back.

The cost of a fact is the number of slots that it settles: each operator is stepped once a phase,
when its last missing input arrives.
"""

from collections import deque
from collections.abc import Callable, Sequence

from kairos.workflows.compile.invalid import OperatorFailed
from kairos.workflows.execute.behaviours import Gives, Located, Progress, WantsCall, WantsPrefill
from kairos.workflows.execute.frames import (
    ABSENT,
    ASKED,
    UNASKED,
    OpenRow,
    RowTooLarge,
    Slot,
    ValueFrame,
)
from kairos.workflows.execute.program import CompiledScope

# Errors that a row's values may cause in a computation: only that row fails.
UNUSUAL = (ArithmeticError, LookupError, RecursionError, TypeError, ValueError)

# Called for a call that an operator wants; the slot is settled, now or later.
Ask = Callable[[ValueFrame, int, WantsCall | WantsPrefill], None]
# Called when a row ends: with the value of its last slot; or with the failed node, and why.
Ended = Callable[[OpenRow, object], None]
Broke = Callable[[OpenRow, str, str], None]


class Evaluation:
    def __init__(self, ask: Ask, ended: Ended, broke: Broke) -> None:
        self._ask, self._ended, self._broke = ask, ended, broke
        self._agenda: deque[Slot] = deque()

    def begin_row(self, row: OpenRow, scope: CompiledScope) -> None:
        frame = scope.frame(row)
        self._demand((frame, len(scope.operators) - 1))
        self._begin_ahead(frame)

    def run(self) -> None:
        """Step operators until every open row waits for a call, or has ended."""
        while self._agenda:
            frame, slot = self._agenda.popleft()
            if frame.row.alive:
                self._step(frame, slot)

    def settle(self, frame: ValueFrame, slot: int, value: object) -> None:
        """Give a slot its value; `run` continues from there. A row's last slot ends it."""
        bounds = frame.row.bounds
        if bounds is not None:
            try:
                bounds.hold(value)
            except RowTooLarge as error:
                self._give_up(frame, slot, str(error))
                return
        frame.values[slot] = value
        if frame.parent is None and slot == len(frame.values) - 1:
            frame.row.alive = False
            self._ended(frame.row, value)
            return
        waiters, frame.waiters[slot] = frame.waiters[slot], None
        for where, at in waiters or ():
            where.pending[at] -= 1
            if not where.pending[at]:
                self._agenda.append((where, at))

    def fail(self, frame: ValueFrame, slot: int, error: str) -> None:
        """Handle an operator without a value for its row, as its `on_error` says."""
        operator = frame.scope.operators[slot].operator
        how = "fail" if operator is None else operator.on_error
        if how in ("skip", "default"):
            frame.row.instead.setdefault(frame.operator_path(slot), (how, error))
        if how == "skip":
            self.settle(frame, slot, ABSENT)
        elif how == "default":
            assert operator is not None
            self.settle(frame, slot, operator.default)
        else:
            self._give_up(frame, slot, error)

    def _give_up(self, frame: ValueFrame, slot: int, error: str) -> None:
        frame.row.alive = False
        self._broke(frame.row, frame.declared_node(slot), error)

    def begin_item(self, frame: ValueFrame, needs: Sequence[Located]) -> None:
        """Ask for the values that an item's result needs from its own frame."""
        for at in needs:
            if at.up == 0 and frame.values[at.slot] is UNASKED:
                self._demand((frame, at.slot))

    def _demand(self, wanted: Slot) -> None:
        frame, slot = wanted
        frame.values[slot] = ASKED
        self._agenda.append(wanted)

    def _begin_ahead(self, frame: ValueFrame) -> None:
        """Ask for all that may be computed ahead when a row, or a round, begins."""
        for slot in frame.scope.ahead:
            if frame.values[slot] is UNASKED:
                self._demand((frame, slot))

    def _step(self, frame: ValueFrame, slot: int) -> None:
        try:
            progress = self._progress(frame, slot)
            while isinstance(progress, list):
                if frame.row.bounds is not None:
                    frame.row.bounds.step(len(progress))
                if self._waits(frame, slot, progress):
                    return
                progress = self._progress(frame, slot)
        except OperatorFailed as error:
            self.fail(frame, slot, str(error))
            return
        except RowTooLarge as error:
            self._give_up(frame, slot, str(error))
            return
        except UNUSUAL as error:
            self.fail(frame, slot, f"{type(error).__name__}: {error}")
            return
        if isinstance(progress, Gives):
            self.settle(frame, slot, progress.value)
        else:
            self._ask(frame, slot, progress)

    def _progress(self, frame: ValueFrame, slot: int) -> Progress:
        behaviour = frame.scope.operators[slot].behaviour
        assert behaviour is not None, "a placeholder is settled from the beginning"
        progress = behaviour.step(frame, frame.phases[slot])
        frame.phases[slot] += 1
        return progress

    def _waits(self, frame: ValueFrame, slot: int, needs: list[Slot]) -> bool:
        missing = 0
        for need in needs:
            where, at = need
            value = where.values[at]
            if value is UNASKED:
                self._demand(need)
                if where.scope.ahead and where.parent is not None:
                    self._begin_ahead(where)
            elif value is not ASKED:
                continue
            missing += 1
            waiting = where.waiters[at]
            if waiting is None:
                where.waiters[at] = [(frame, slot)]
            else:
                waiting.append((frame, slot))
        frame.pending[slot] = missing
        return missing > 0
