"""How many rows are asked for."""

import msgspec

from kairos.execution.limits import FlowLimits, open_rows
from kairos.plan.call_shapes import call_shapes
from kairos.plan.pipeline import Plan
from kairos.plan.row_window import rows_at_once

_FIRST = 16  # rows that are asked for before the size of any is known
_LEAST_BYTES = 256  # that a row is taken for


def fitting(plan: Plan, limits: FlowLimits) -> FlowLimits:
    """With no more open rows than engines' memory should have contexts of, where that pays."""
    if not plan.passes.order or limits.kv_tokens is None or plan.group is not None:
        return limits
    shapes = call_shapes(plan.declaration.operators)
    rows = rows_at_once(shapes, limits.kv_tokens, limits.capacity)
    if rows is None:
        return limits
    most = rows if limits.max_open_rows is None else min(rows, limits.max_open_rows)
    return msgspec.structs.replace(limits, max_open_rows=min(most, open_rows(limits.capacity)))


class RowIntake:
    """Rows of one stage: asked for, open, and whether there are more."""

    def __init__(self, limits: FlowLimits) -> None:
        self._told_rows, self._most_bytes = limits.max_open_rows, limits.max_open_bytes
        self.resize(limits.capacity)
        self._largest = 0
        self._held = 0
        self.asked = 0
        self.open = 0
        self.ended = False

    def resize(self, capacity: int) -> None:
        """Take another number of calls that the engines run at once."""
        self._most_rows = open_rows(capacity) if self._told_rows is None else self._told_rows

    @property
    def done(self) -> bool:
        return self.ended and not self.open

    def room(self, wanted: int) -> int:
        """How many of `wanted` rows may be asked for now. However large they are, one may be, where
        none is open."""
        if self.ended or wanted <= self.asked:
            return 0
        largest = max(self._largest, _LEAST_BYTES)
        by_size = (self._most_bytes - self._held) // largest - self.asked
        by_size = max(by_size, not self.open and not self.asked)
        if not self._largest:
            by_size = min(by_size, _FIRST - self.asked)
        return max(0, min(wanted - self.asked, self._most_rows - self.open - self.asked, by_size))

    def arrived(self, size_bytes: int) -> None:
        self._left()
        self.open += 1
        self._held += size_bytes
        self._largest = max(self._largest, size_bytes, 1)

    def grew(self, size_bytes: int, whole_bytes: int) -> None:
        """An open row takes more than when it was read, and so much in all: those to come are
        taken to grow like it."""
        self._held += size_bytes
        self._largest = max(self._largest, whole_bytes)

    def unreadable(self) -> None:
        self._left()

    def exhausted(self) -> None:
        self.ended = True
        self.asked = 0

    def closed(self, size_bytes: int) -> None:
        self.open -= 1
        self._held -= size_bytes

    def _left(self) -> None:
        self.asked = max(0, self.asked - 1)
