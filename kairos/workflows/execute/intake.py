"""How many rows are asked for."""

from kairos.workflows.compile.passes.order import CallOrder
from kairos.workflows.execute.limits import FlowLimits, open_rows

_FIRST = 16  # rows that are asked for before the size of any is known
_LEAST_BYTES = 256  # that a row is taken for


class RowIntake:
    """Rows of one stage: asked for, open, and whether there are more."""

    def __init__(self, limits: FlowLimits) -> None:
        self._told_rows, self._most_bytes = limits.max_open_rows, limits.max_open_bytes
        self._kept_rows: int | None = None  # by an order
        self._together = 1  # rows that are asked for together
        self.resize(limits.capacity)
        self._largest = 0
        self._held = 0
        self._read = 0
        self.asked = 0
        self.open = 0
        self.ended = False

    def resize(self, capacity: int) -> None:
        """Take another number of calls that the engines run at once."""
        most = open_rows(capacity) if self._told_rows is None else self._told_rows
        self._most_rows = min(most, self._kept_rows or most)
        self._together = min(self._together, self._most_rows)

    @property
    def done(self) -> bool:
        return self.ended and not self.open

    @property
    def may_open(self) -> bool:
        """Whether a row that is there may be opened."""
        return self.open < self._most_rows

    @property
    def holds_back(self) -> bool:
        """Whether more rows could be open, were it not for the order."""
        return self._kept_rows is not None and not self.ended

    def keep(self, order: CallOrder) -> None:
        """Open rows as it has it, as far as there is room."""
        self._kept_rows = order.open_rows
        self._most_rows = min(self._most_rows, order.open_rows or self._most_rows)
        self._together = min(order.together or 1, self._most_rows)

    def room(self, wanted: int) -> int:
        """Return how many rows may be asked for now, where `wanted` would do: the rest of rows that
        go together, and more of them as long as more are wanted. However large they are, one may
        be, where none is open."""
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
        self._read += 1
        self.asked = max(0, self.asked - 1)
