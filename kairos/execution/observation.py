"""What a run's calls turned out to be, operator by operator: to learn from, and to compare a plan
with. What is kept does not grow with the table."""

import msgspec

from kairos.execution.facts import CallAnswered

LENGTHS_KEPT = 512  # calls of an operator whose lengths are kept one by one
ROWS_KEPT = 256  # the first rows, of which is known how often it was computed


class OperatorSeen(msgspec.Struct):
    """Of LLM calls that were made, tokens; of all that was computed, how often for a row."""

    calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    lengths: list[tuple[int, int]] = []  # tokens of prompt and answer
    times: dict[tuple[int, int], int] = {}  # by stage and row, merged and fetched ones included


class FlowObservation:
    """By operator, in the order in which they were first seen."""

    def __init__(self) -> None:
        self.operators: dict[str, OperatorSeen] = {}

    def answered(self, operator: str, fact: CallAnswered) -> None:
        """An LLM call was."""
        seen = self._of(operator)
        seen.calls += 1
        seen.prompt_tokens += fact.prompt_tokens
        seen.completion_tokens += fact.completion_tokens
        seen.cached_tokens += fact.cached_tokens
        if len(seen.lengths) < LENGTHS_KEPT:
            seen.lengths.append((fact.prompt_tokens, fact.completion_tokens))

    def computed(self, operator: str, stage: int, row: int) -> None:
        """It has a result, wherever that came from."""
        times = self._of(operator).times
        if row < ROWS_KEPT:  # by number, so that it is known of how many rows these are some
            times[stage, row] = times.get((stage, row), 0) + 1

    def _of(self, operator: str) -> OperatorSeen:
        return self.operators.setdefault(operator, OperatorSeen())
