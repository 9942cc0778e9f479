"""Rows of an input table, and their size limit."""

from collections.abc import Iterator
from typing import Any, Protocol

import msgspec

ROW_BYTES = 10 << 20  # of one row; a larger one fails


class InputRow(msgspec.Struct, frozen=True):
    """Row of an input table.

    `number` counts from 0; `size_bytes` is approximate. `values` are JSON values: others, such as a
    timestamp or bytes, are converted to text by msgspec. An unreadable row has only a `problem`.
    """

    number: int
    size_bytes: int
    values: dict[str, Any] | None = None
    problem: str | None = None


class InputTable(Protocol):
    """Table whose rows are read one by one, never all at once; it can be read several times."""

    columns: tuple[str, ...]  # JSON Lines: of the first rows; later rows may have more
    repeated: tuple[str, ...]  # names of several columns, which rows leave out

    def rows(self) -> Iterator[InputRow]:
        """Yield the rows, from the first to the last.

        Raises:
            InvalidFile: the rest cannot be read.
        """

    def may_have(self, column: str) -> bool:
        """Return whether any row may have this column; true for an empty table.

        Raises:
            InvalidFile: the table must be searched for it, and cannot be read to its end.
        """

    def expected_rows(self, read: int) -> int | None:
        """Return an estimate of the number of rows after `read` rows; None: not known."""


def too_large() -> str:
    return f"the row is larger than {ROW_BYTES >> 20} MiB"
