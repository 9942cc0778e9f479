"""Values of one row while it is computed.

A row has a frame with a slot for each operator; a round of a loop and an item of a map have frames
of their own, whose parent is the frame around them. A slot is unasked, asked for, absent, or has a
value.
"""

from collections.abc import Mapping
from enum import Enum
from typing import TYPE_CHECKING

from kairos.workflows.execute.facts import Known

if TYPE_CHECKING:
    from kairos.workflows.execute.program import CompiledScope
    from kairos.workflows.execute.row_bounds import RowBounds
    from kairos.workflows.execute.trials import EarlyWork


class Mark(Enum):
    """State of a slot without a value."""

    UNASKED = 0
    ASKED = 1
    ABSENT = 2  # settled without a value


UNASKED, ASKED, ABSENT = Mark.UNASKED, Mark.ASKED, Mark.ABSENT


class OpenRow:
    """Row that is being computed.

    `given`: its input. `early`: work begun for it before it was known to be needed, if any.
    """

    __slots__ = ("alive", "bounds", "early", "given", "instead", "known", "row", "size_bytes",
                 "stage")  # fmt: skip

    def __init__(
        self, stage: int, row: int, given: object, known: Mapping[str, Known], size_bytes: int
    ) -> None:
        self.stage, self.row, self.given = stage, row, given
        self.known, self.size_bytes = known, size_bytes
        self.alive = True
        self.early: EarlyWork | None = None
        self.bounds: RowBounds | None = None  # None: not bounded
        # Operators that failed and continued by `skip` or `default`, with the first reason.
        self.instead: dict[str, tuple[str, str]] = {}


class ValueFrame:
    """Slots of a row, a round or an item. `path`: prefix of its nodes' names."""

    __slots__ = ("children", "parent", "path", "pending", "phases", "row", "scope", "values",
                 "waiters")  # fmt: skip

    def __init__(
        self, row: OpenRow, scope: "CompiledScope", parent: "ValueFrame | None", path: str
    ) -> None:
        size = len(scope.operators)
        self.row, self.scope, self.parent, self.path = row, scope, parent, path
        self.values: list[object] = [UNASKED] * size
        self.phases = [0] * size
        self.pending = [0] * size
        self.waiters: list[list[Slot] | None] = [None] * size
        self.children: dict[int, list[ValueFrame]] = {}

    def node(self, slot: int) -> str:
        return self.path + self.scope.operators[slot].name

    def declared_node(self, slot: int) -> str:
        """Return the node, named by the operator that the flow declares."""
        declared = self.scope.operators[slot].declared
        if declared is None:
            return self.node(slot)
        around = self.parent if self.scope.is_staged else self
        assert around is not None, "a body is within a frame"
        return around.path + declared

    def operator_path(self, slot: int) -> str:
        """Return the declared node without the numbers of rounds and items."""
        parts = self.declared_node(slot).split(".")
        return ".".join(part for part in parts if not part.isdigit())


Slot = tuple[ValueFrame, int]
