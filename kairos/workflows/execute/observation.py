"""Observations of a run: its calls by operator, and on a timeline.

They are what is learnt from a run, and what a plan is compared with. Their size does not grow with
the table.
"""

from collections.abc import Mapping

import msgspec

from kairos.workflows.execute.commands import IssueCall, RunFunction, RunProcessor
from kairos.workflows.execute.facts import CallAnswered, CallBroke, FlowFact

LENGTHS_KEPT = 512  # calls of an operator whose lengths are recorded
_ERROR_LENGTH = 500
ROWS_KEPT = 256  # first rows, for which executions of an operator are counted

MOST_ACTIVITIES = 10_000

Calling = IssueCall | RunFunction | RunProcessor


class OperatorSeen(msgspec.Struct):
    """Observations of an operator: tokens of LLM calls, times, and executions by row."""

    calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    lengths: list[tuple[int, int]] = []  # tokens of prompt and answer
    took_us: list[int] = []  # of calls of a function or a processor
    times: dict[tuple[int, int], int] = {}  # by stage and row, merged and fetched ones included


class TimeShares:
    """Shares of a processor's time among its concurrent calls.

    At each moment all items have the same share, so the shares add up to the time in which it had
    work. Batches need not be known.
    """

    def __init__(self) -> None:
        self._items, self._changed_at = 0, 0.0
        self._share = 0.0  # of an item since the beginning

    def begin_call(self, items: int, at: float) -> tuple[int, float]:
        """Count a call of `items` items. Return the argument of `end_call` for it."""
        self._advance_to(at)
        self._items += max(1, items)
        return max(1, items), self._share

    def end_call(self, begun: tuple[int, float], at: float) -> float:
        """Return the share of a call that has ended, in the unit of `at`."""
        self._advance_to(at)
        items, share = begun
        self._items -= items
        return items * (self._share - share)

    def _advance_to(self, at: float) -> None:
        if self._items:
            self._share += (at - self._changed_at) / self._items
        self._changed_at = at


class Fallback(msgspec.Struct, frozen=True):
    """Rows that continued by `on_error` although an operator failed."""

    how: str  # skip or default
    rows: int
    row: int  # the first one seen
    error: str  # reason for this row

    def plus(self, later: "Fallback") -> "Fallback":
        return msgspec.structs.replace(self, rows=self.rows + later.rows)


class FlowObservation:
    """Observations by operator, in the order in which they were first seen."""

    def __init__(self) -> None:
        self.operators: dict[str, OperatorSeen] = {}
        self.fallbacks: dict[str, Fallback] = {}

    def count_fallbacks(self, row: int, instead: Mapping[str, tuple[str, str]]) -> None:
        """Count a row that ended although operators failed: with how and why for each."""
        for operator, (how, error) in instead.items():
            new = Fallback(how, 1, row, error[:_ERROR_LENGTH])
            before = self.fallbacks.get(operator)
            self.fallbacks[operator] = new if before is None else before.plus(new)

    def record_answer(self, operator: str, fact: CallAnswered) -> None:
        """Record an answered LLM call."""
        seen = self._of(operator)
        seen.calls += 1
        seen.prompt_tokens += fact.prompt_tokens
        seen.completion_tokens += fact.completion_tokens
        seen.cached_tokens += fact.cached_tokens
        if len(seen.lengths) < LENGTHS_KEPT:
            seen.lengths.append((fact.prompt_tokens, fact.completion_tokens))

    def record_duration(self, operator: str, fact: CallAnswered) -> None:
        """Record the time that a function or a processor took."""
        took_us = self._of(operator).took_us
        if fact.took_us is not None and len(took_us) < LENGTHS_KEPT:
            took_us.append(fact.took_us)

    def count_result(self, operator: str, stage: int, row: int) -> None:
        """Count a result of an operator, from any source."""
        times = self._of(operator).times
        if row < ROWS_KEPT:  # by number, so that the number of rows observed is known
            times[stage, row] = times.get((stage, row), 0) + 1

    def _of(self, operator: str) -> OperatorSeen:
        return self.operators.setdefault(operator, OperatorSeen())


class Activity(msgspec.Struct, frozen=True, gc=False):
    """Call that has ended."""

    stage: int
    row: int
    node: str
    operator: str
    kind: str  # of the operator
    begun_us: int
    ended_us: int

    @property
    def us(self) -> int:
        return self.ended_us - self.begun_us


class Timeline:
    """Timeline of a run's calls, as its driver reports them in µs since any origin.

    It has up to `MOST_ACTIVITIES` calls; later ones are not recorded.
    """

    def __init__(self) -> None:
        self.activities: list[Activity] = []
        self._begun: dict[int, tuple[Calling, int]] = {}

    def begin_call(self, command: Calling, at_us: int) -> None:
        if len(self.activities) + len(self._begun) < MOST_ACTIVITIES:
            self._begun[command.call] = (command, at_us + command.delay_us)

    def record_fact(self, fact: FlowFact, at_us: int) -> None:
        if isinstance(fact, CallAnswered | CallBroke) and fact.call in self._begun:
            command, begun_us = self._begun.pop(fact.call)
            self.activities.append(
                Activity(
                    command.stage,
                    command.row,
                    command.node,
                    command.operator,
                    _kind(command),
                    begun_us,
                    at_us,
                )
            )


def _kind(command: Calling) -> str:
    match command:
        case IssueCall():
            return "llm"
        case RunFunction():
            return "call"
    return command.kind
