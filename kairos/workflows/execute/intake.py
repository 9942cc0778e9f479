"""Number of rows that an executor asks for."""

from kairos.workflows.compile.passes.order import CallOrder
from kairos.workflows.execute.limits import FlowLimits, open_rows

_FIRST = 16  # rows asked for while no size is known
_LEAST_BYTES = 256  # assumed for a row


class RowIntake:
    """Rows of one stage: asked for, open, and whether there are more."""

    def __init__(self, limits: FlowLimits) -> None:
        self._told_rows, self._most_bytes = limits.max_open_rows, limits.max_open_bytes
        self._kept_rows: int | None = None  # limit by an order
        self._together = 1  # rows asked for together
        self.resize(limits.capacity)
        self._largest = 0
        self._held = 0
        self._read = 0
        self.asked = 0
        self.open = 0
        self.ended = False

    def resize(self, capacity: int) -> None:
        """Set the number of calls that the engines run at once."""
        most = open_rows(capacity) if self._told_rows is None else self._told_rows
        self._most_rows = min(most, self._kept_rows or most)
        self._together = min(self._together, self._most_rows)

    @property
    def done(self) -> bool:
        return self.ended and not self.open

    @property
    def may_open(self) -> bool:
        """Return whether another row may be opened."""
        return self.open < self._most_rows

    @property
    def holds_back(self) -> bool:
        """Return whether the order limits the open rows."""
        return self._kept_rows is not None and not self.ended

    def keep(self, order: CallOrder) -> None:
        """Open rows by an order, as far as there is room."""
        self._kept_rows = order.open_rows
        self._most_rows = min(self._most_rows, order.open_rows or self._most_rows)
        self._together = min(order.together or 1, self._most_rows)

    def room(self, wanted: int) -> int:
        """Return how many rows may be asked for now.

        These are the rest of rows that belong together, and more of them as long as `wanted` is not
        reached. One row is allowed if none is open, however large it may be.
        """
        rest = -(self._read + self.asked) % self._together
        more = wanted - self.asked - rest
        more = max(0, -(-more // self._together) * self._together)
        if self.ended or not rest + more:
            return 0
        largest = max(self._largest, _LEAST_BYTES)
        by_size = (self._most_bytes - self._held) // largest - self.asked
        by_size = max(by_size, not self.open and not self.asked)
        if not self._largest:
            by_size = min(by_size, _FIRST - self.asked)
        return max(0, min(rest + more, self._most_rows - self.open - self.asked, by_size))

    def arrived(self, size_bytes: int) -> None:
        self._left()
        self.open += 1
        self._held += size_bytes
        self._largest = max(self._largest, size_bytes, 1)

    def grew(self, size_bytes: int, whole_bytes: int) -> None:
        """Count the growth of an open row, and its size; later rows are assumed to grow like it."""
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
        self._read += 1
        self.asked = max(0, self.asked - 1)
