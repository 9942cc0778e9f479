"""How far a partition is done, although what came first may be done last."""


class Offsets:
    """Offsets are added in order; `next` is where a successor must begin to read."""

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
        """None: nothing was added yet."""
        first = next(iter(self._undone), self._end)
        return None if first < 0 else first
