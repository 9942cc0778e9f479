"""Order in which calls of a flow are released when more are ready than engines take."""

from collections.abc import Mapping

import msgspec

from kairos.workflows.compile.nesting import Sequences


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

    def turn(self, operator: str) -> CallTurn:
        return self.turns.get(operator, _FIRST)


_FIRST = CallTurn()
AS_DECLARED = CallOrder("row-major", {})  # as calls become ready, earlier rows first


def of_sequences(nesting: str, sequences: Sequences) -> CallOrder:
    turns = {
        name: CallTurn(number, place)
        for number, sequence in enumerate(sequences)
        for place, name in enumerate(sequence)
    }
    return CallOrder(nesting, turns)
