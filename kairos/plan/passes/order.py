"""In which order calls of a flow are released where more are ready than engines take.

Operators are put into cache-aware order (`order.py`), and the ways to nest them with rows are
reckoned for a few rows in token steps: all in one sequence, so that rows follow each other; a
sequence for each static beginning; operators one after the other. The least is taken.
"""

from collections.abc import Mapping, Sequence

import msgspec

from kairos.plan.call_shapes import CallShapes, call_shapes
from kairos.plan.costs.token_steps import token_steps
from kairos.plan.nesting import Sequences, expanded, nestings, of_rows
from kairos.plan.operators import Operator
from kairos.plan.order import best_effort, cache_aware_order

# What an instance holds, about. Only how long delays are beside usage depends on it.
KV_TOKENS = 65_536
_ROWS = 3  # that are reckoned with
_RECKONED = 400  # calls, beyond which rows follow each other: the time grows with the square


class CallTurn(msgspec.Struct, frozen=True, gc=False):
    """Calls of earlier sequences go first, of one those of earlier rows, of a row by `place`."""

    sequence: int = 0
    place: int = 0


class CallOrder(msgspec.Struct, frozen=True):
    """By LLM operator; all others go with the first."""

    nesting: str
    turns: Mapping[str, CallTurn]

    def turn(self, operator: str) -> CallTurn:
        return self.turns.get(operator, _FIRST)


_FIRST = CallTurn()
AS_DECLARED = CallOrder("row-major", {})


def call_order(operators: Sequence[Operator]) -> CallOrder:
    """Return the order of calls of operators as `in_order` gives them."""
    shapes = call_shapes(operators)
    ways = nestings(cache_aware_order(shapes.calls, KV_TOKENS), shapes.static)
    rows = min(_ROWS, _RECKONED // max(1, len(shapes.calls)))
    if len(ways) == 1 or rows < 2:
        return of_sequences("row-major", ways["row-major"])
    steps = {name: _steps(shapes, sequences, rows) for name, sequences in ways.items()}
    best = min(steps, key=lambda name: steps[name])
    return of_sequences(best, ways[best])


def of_sequences(nesting: str, sequences: Sequences) -> CallOrder:
    turns = {
        name: CallTurn(number, place)
        for number, sequence in enumerate(sequences)
        for place, name in enumerate(sequence)
    }
    return CallOrder(nesting, turns)


def _steps(shapes: CallShapes, sequences: Sequences, rows: int) -> float:
    calls = of_rows(shapes.calls, shapes.varies, rows)
    carried_out = best_effort(expanded(sequences, rows), calls, KV_TOKENS)
    return token_steps([carried_out], calls, [KV_TOKENS])
