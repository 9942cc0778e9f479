"""Bounds on one row's computation, for flows that anyone may write.

Templates are bounded one by one (`workflows/compile/template_language.py`), and so are rounds and
items. Their nesting is not: a hundred rounds four deep are a hundred million steps without a single
call, and a list that has the last round's list twice has 2**100 texts, though memory has each once.
The caller measures the time of steps, and reports when it is used up.
"""

from collections.abc import Callable, Mapping

from kairos.workflows.execute.limits import FlowLimits


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
