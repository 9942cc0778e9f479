"""What a run's calls turned out to be, operator by operator: to learn from, and to compare a plan
with. What is kept does not grow with the table."""

from collections.abc import Mapping

import msgspec

from kairos.execution.facts import CallAnswered

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
    took_us: list[int] = []  # of a function's calls
    times: dict[tuple[int, int], int] = {}  # by stage and row, merged and fetched ones included


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
        """A function has given its value."""
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
