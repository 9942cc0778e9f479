"""Values of one row while it is computed, and the bounds on them.

A row has a frame with a slot for each operator; a round of a loop and an item of a map have frames
of their own, whose parent is the frame around them. A slot is unasked, asked for, absent, or has a
value.

A row of a flow that anyone may write is bounded as a whole (`RowBounds`). Templates are bounded one
by one (`workflows/compile/template_language.py`), and so are rounds and items. Their nesting is
not: a hundred rounds four deep are a hundred million steps without a single call, and a list that
has the last round's list twice has 2**100 texts, though memory has each once. The caller measures
the time of steps, and reports when it is used up.
"""

from collections.abc import Callable, Mapping
from enum import Enum
from typing import TYPE_CHECKING

from kairos.workflows.execute.facts import Known
from kairos.workflows.execute.limits import FlowLimits

if TYPE_CHECKING:
    from kairos.workflows.execute.program import CompiledScope
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


class RowTooLarge(Exception):
    """A row exceeds its bounds: it fails, regardless of `on_error` of its operators."""


IsSpent = Callable[[], bool]  # returns whether rows have used up their time


def never() -> bool:
    return False


class RowBounds:
    """Remaining bounds of one row. A text counts its characters, and each value one more."""

    __slots__ = ("_bytes_left", "_is_spent", "_limits", "_steps_left")

    def __init__(self, limits: FlowLimits, is_spent: IsSpent) -> None:
        self._limits, self._is_spent = limits, is_spent
        self._steps_left, self._bytes_left = limits.row_steps, limits.row_bytes

    def step(self, waits_for: int) -> None:
        """Count a step of an operator and the values it asks for. Raises RowTooLarge."""
        if self._steps_left is None:
            return
        self._steps_left -= 1 + waits_for
        if self._steps_left < 0:
            raise RowTooLarge(f"the row takes more than {self._limits.row_steps} steps")
        if self._is_spent():
            raise RowTooLarge("the row computes for too long: its templates loop too much")

    def hold(self, value: object) -> None:
        """Count a new value. Raises RowTooLarge."""
        if self._bytes_left is None:
            return
        self._bytes_left -= _size(value, self._bytes_left)
        if self._bytes_left < 0:
            most = self._limits.row_bytes
            raise RowTooLarge(f"the row's values have more than {most} characters")


def bounds_of(limits: FlowLimits, is_spent: IsSpent) -> RowBounds | None:
    """Return the bounds of a new row; None: it is not bounded."""
    if limits.row_steps is None and limits.row_bytes is None:
        return None
    return RowBounds(limits, is_spent)


def _size(value: object, most: int) -> int:
    """Return the size of a value as written out; a shared part counts each time.

    Stops once the size is above `most`.
    """
    size, left = 0, [value]
    while left and size <= most:
        each = left.pop()
        size += 1
        if isinstance(each, str):
            size += len(each)
        elif isinstance(each, list):
            left += each
        elif isinstance(each, Mapping):
            left += each
            left += each.values()
    return size
