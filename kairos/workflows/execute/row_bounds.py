"""What one row may take of whoever computes it, where its flow is of anyone's making.

Templates are bounded one by one (`workflows/compile/template_language.py`), and so are rounds and
items. What nests them is not: a hundred rounds four deep are a hundred million steps without a
single call, and a list that has the last round's twice has 2**100 texts, though memory has each
once. What the steps cost, whoever lets the row compute measures, and says when it has had its time.
"""

from collections.abc import Callable, Mapping

from kairos.workflows.execute.limits import FlowLimits


class RowTooLarge(Exception):
    """A row takes more than it may: it fails, whatever its operators say of failures."""


IsSpent = Callable[[], bool]  # whether rows have computed for as long as they may


def never() -> bool:
    return False


class RowBounds:
    """Of one row: how much it may still take. Texts count by their characters, and each value by
    one more."""

    __slots__ = ("_bytes_left", "_is_spent", "_limits", "_steps_left")

    def __init__(self, limits: FlowLimits, is_spent: IsSpent) -> None:
        self._limits, self._is_spent = limits, is_spent
        self._steps_left, self._bytes_left = limits.row_steps, limits.row_bytes

    def step(self, waits_for: int) -> None:
        """An operator goes on, and asks for so many values. Raises RowTooLarge."""
        if self._steps_left is None:
            return
        self._steps_left -= 1 + waits_for
        if self._steps_left < 0:
            raise RowTooLarge(f"the row takes more than {self._limits.row_steps} steps")
        if self._is_spent():
            raise RowTooLarge("the row computes for too long: its templates loop too much")

    def hold(self, value: object) -> None:
        """It has one more value. Raises RowTooLarge."""
        if self._bytes_left is None:
            return
        self._bytes_left -= _size(value, self._bytes_left)
        if self._bytes_left < 0:
            most = self._limits.row_bytes
            raise RowTooLarge(f"the row's values have more than {most} characters")


def bounds_of(limits: FlowLimits, is_spent: IsSpent) -> RowBounds | None:
    """Of a new row; None: it may take what it likes."""
    if limits.row_steps is None and limits.row_bytes is None:
        return None
    return RowBounds(limits, is_spent)


def _size(value: object, most: int) -> int:
    """As it would be written, with what it has twice counted twice. Beyond `most` it goes no
    further."""
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
