"""Observed calls of a run by operator: to learn from, and to compare a plan with.

Its size does not grow with the table.
"""

from collections.abc import Mapping

import msgspec

from kairos.workflows.execute.facts import CallAnswered

LENGTHS_KEPT = 512  # calls of an operator whose lengths are recorded
_ERROR_LENGTH = 500
ROWS_KEPT = 256  # first rows, for which executions of an operator are counted


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

    def begin(self, items: int, at: float) -> tuple[int, float]:
        """Count a call of `items` items. Return the argument of `end` for it."""
        self._go_on(at)
        self._items += max(1, items)
        return max(1, items), self._share

    def end(self, begun: tuple[int, float], at: float) -> float:
        """Return the share of a call that has ended, in the unit of `at`."""
        self._go_on(at)
        items, share = begun
        self._items -= items
        return items * (self._share - share)

    def _go_on(self, at: float) -> None:
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

    def went_on(self, row: int, instead: Mapping[str, tuple[str, str]]) -> None:
        """Count a row that ended although operators failed: with how and why for each."""
        for operator, (how, error) in instead.items():
            new = Fallback(how, 1, row, error[:_ERROR_LENGTH])
            before = self.fallbacks.get(operator)
            self.fallbacks[operator] = new if before is None else before.plus(new)

    def answered(self, operator: str, fact: CallAnswered) -> None:
        """Record an answered LLM call."""
        seen = self._of(operator)
        seen.calls += 1
        seen.prompt_tokens += fact.prompt_tokens
        seen.completion_tokens += fact.completion_tokens
        seen.cached_tokens += fact.cached_tokens
        if len(seen.lengths) < LENGTHS_KEPT:
            seen.lengths.append((fact.prompt_tokens, fact.completion_tokens))

    def took(self, operator: str, fact: CallAnswered) -> None:
        """Record the time that a function or a processor took."""
        took_us = self._of(operator).took_us
        if fact.took_us is not None and len(took_us) < LENGTHS_KEPT:
            took_us.append(fact.took_us)

    def computed(self, operator: str, stage: int, row: int) -> None:
        """Count a result of an operator, from any source."""
        times = self._of(operator).times
        if row < ROWS_KEPT:  # by number, so that the number of rows observed is known
            times[stage, row] = times.get((stage, row), 0) + 1

    def _of(self, operator: str) -> OperatorSeen:
        return self.operators.setdefault(operator, OperatorSeen())
