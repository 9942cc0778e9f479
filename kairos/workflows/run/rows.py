"""A row of an input table, and how large one may be."""

from collections.abc import Iterator
from typing import Any, Protocol

import msgspec

ROW_BYTES = 10 << 20  # of one row as it is read; a larger one has failed


class InputRow(msgspec.Struct, frozen=True):
    """`number` counts from 0; `size_bytes` is about what it takes. `values` are JSON's: what has no
    like there, such as an instant or bytes, is the text that msgspec makes of it. A row that cannot
    be read has a `problem` alone."""

    number: int
    size_bytes: int
    values: dict[str, Any] | None = None
    problem: str | None = None


class InputTable(Protocol):
    """Rows that are read one after the other, never all at once, and again from the start."""

    columns: tuple[str, ...]  # JSON Lines: of the first rows; others may have more
    repeated: tuple[str, ...]  # names that several columns have, which rows leave out

    def rows(self) -> Iterator[InputRow]:
        """From the first to the last.

        Raises:
            InvalidFile: what follows cannot be read at all.
        """

    def may_have(self, column: str) -> bool:
        """Return whether any row may have this column, which no row of an empty table lacks.

        Raises:
            InvalidFile: the table has to be looked through for it, and cannot be read to its end.
        """

    def expected_rows(self, read: int) -> int | None:
        """How many there are in all, as far as the table tells by now that so many were read."""


def too_large() -> str:
    return f"the row is larger than {ROW_BYTES >> 20} MiB"
