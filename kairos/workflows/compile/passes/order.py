"""Order in which calls of a flow are released when more are ready than engines take.

An inner sequence is a set of operators that a batch passes row by row; sequences follow each other
(Helium, section 5, nested sequences). With all operators in one sequence, rows follow each other
(row-major); with one in each, operators do (operator-major). In between there is one sequence for
each static prefix of prompts, so that operators that share a row's context find it cached, and all
rows find a long static prefix (nested). If operators with the same prefix wait for others in
between, that would mix sequences: so there is one for each stretch of the order, too.
"""

from collections.abc import Mapping, Sequence
from itertools import groupby

import msgspec

Sequences = tuple[tuple[str, ...], ...]


def nestings(order: Sequence[str], static: Mapping[str, object]) -> dict[str, Sequences]:
    """Return the nestings by name, without duplicates.

    `static`: by operator, the static prefix of its prompt; equal ones form one sequence.
    """
    groups: dict[object, list[str]] = {}
    for name in order:
        groups.setdefault(static[name], []).append(name)
    found = {
        "row-major": (tuple(order),),
        "nested": tuple(tuple(group) for group in groups.values()),
        "in stretches": tuple(tuple(group) for _, group in groupby(order, static.__getitem__)),
        "operator-major": tuple((name,) for name in order),
    }
    seen: dict[Sequences, str] = {}
    for name, sequences in found.items():
        seen.setdefault(sequences, name)
    return {name: sequences for sequences, name in seen.items()}


class CallTurn(msgspec.Struct, frozen=True, gc=False):
    """Turn of an operator's calls: by sequence, then row, then `place`."""

    sequence: int = 0
    place: int = 0


class CallOrder(msgspec.Struct, frozen=True):
    """Turns by LLM operator; all others have the first.

    `together`: rows whose sequences follow each other, before later rows; `open_rows`: rows that
    are open at most. None: all rows.
    """

    nesting: str
    turns: Mapping[str, CallTurn]
    together: int | None = None
    open_rows: int | None = None

    def key(self, operator: str, row: int) -> tuple[int, int, int, int]:
        """Return the key of an operator's call for a row; the smallest goes first."""
        turn = self.turns.get(operator, _FIRST)
        return row // self.together if self.together else 0, turn.sequence, row, turn.place


_FIRST = CallTurn()
AS_DECLARED = CallOrder("row-major", {})  # as calls become ready, earlier rows first


def of_sequences(nesting: str, sequences: Sequences) -> CallOrder:
    turns = {
        name: CallTurn(number, place)
        for number, sequence in enumerate(sequences)
        for place, name in enumerate(sequence)
    }
    return CallOrder(nesting, turns)
