"""Progress in a partition whose messages may be done in any order."""


class Offsets:
    """Offsets in progress, added in order; a successor must begin to read at `next`."""

    def __init__(self) -> None:
        self._undone: dict[int, None] = {}  # in order
        self._end = -1

    def add(self, offset: int) -> None:
        self._undone[offset] = None
        self._end = max(self._end, offset + 1)

    def done(self, offset: int) -> None:
        self._undone.pop(offset, None)

    @property
    def next(self) -> int | None:
        """First offset that is not done; None: none has been added yet."""
        first = next(iter(self._undone), self._end)
        return None if first < 0 else first
