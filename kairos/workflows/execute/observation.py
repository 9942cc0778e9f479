"""What a run's calls turned out to be, operator by operator: to learn from, and to compare a plan
with. What is kept does not grow with the table."""

from collections.abc import Mapping

import msgspec

from kairos.workflows.execute.facts import CallAnswered

LENGTHS_KEPT = 512  # calls of an operator whose lengths are kept one by one
_ERROR_LENGTH = 500
ROWS_KEPT = 256  # the first rows, of which is known how often it was computed


class OperatorSeen(msgspec.Struct):
    """Of LLM calls that were made, tokens; of all that was computed, how often for a row."""

    calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    lengths: list[tuple[int, int]] = []  # tokens of prompt and answer
    took_us: list[int] = []  # of calls of a function or a processor
    times: dict[tuple[int, int], int] = {}  # by stage and row, merged and fetched ones included


class TimeShares:
    """Owns how a processor's time is shared among the calls that it has under way.

    Of each moment all items have the same share, so the shares make up the time in which it had
    something to do. Batches need not be known for that.
    """

    def __init__(self) -> None:
        self._items, self._changed_at = 0, 0.0
        self._share = 0.0  # of an item that was there from the first on

    def begin(self, items: int, at: float) -> tuple[int, float]:
        """Count a call of so many items. Return what `end` is given for it."""
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
    """Rows for which an operator had no value, and which went on by its `on_error`."""

    how: str  # skip or default
    rows: int
    row: int  # the first that was noticed
    error: str  # why, for this one

    def plus(self, later: "Fallback") -> "Fallback":
        return msgspec.structs.replace(self, rows=self.rows + later.rows)


class FlowObservation:
    """By operator, in the order in which they were first seen."""

    def __init__(self) -> None:
        self.operators: dict[str, OperatorSeen] = {}
        self.fallbacks: dict[str, Fallback] = {}

    def went_on(self, row: int, instead: Mapping[str, tuple[str, str]]) -> None:
        """Count a row that has ended although operators had no value: for each how and why."""
        for operator, (how, error) in instead.items():
            new = Fallback(how, 1, row, error[:_ERROR_LENGTH])
            before = self.fallbacks.get(operator)
            self.fallbacks[operator] = new if before is None else before.plus(new)

    def answered(self, operator: str, fact: CallAnswered) -> None:
        """An LLM call was."""
        seen = self._of(operator)
        seen.calls += 1
        seen.prompt_tokens += fact.prompt_tokens
        seen.completion_tokens += fact.completion_tokens
        seen.cached_tokens += fact.cached_tokens
        if len(seen.lengths) < LENGTHS_KEPT:
            seen.lengths.append((fact.prompt_tokens, fact.completion_tokens))

    def took(self, operator: str, fact: CallAnswered) -> None:
        """Note how long a function or a processor took to give its value."""
        took_us = self._of(operator).took_us
        if fact.took_us is not None and len(took_us) < LENGTHS_KEPT:
            took_us.append(fact.took_us)

    def computed(self, operator: str, stage: int, row: int) -> None:
        """It has a result, wherever that came from."""
        times = self._of(operator).times
        if row < ROWS_KEPT:  # by number, so that it is known of how many rows these are some
            times[stage, row] = times.get((stage, row), 0) + 1

    def _of(self, operator: str) -> OperatorSeen:
        return self.operators.setdefault(operator, OperatorSeen())
