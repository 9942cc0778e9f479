"""Tables as JSON Lines: an object a line, plain or gzip."""

from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from kairos.errors import InvalidFile
from kairos.live.runs.lines import LineFile, LongLine
from kairos.live.runs.rows import ROW_BYTES, InputRow, too_large

_COLUMNS_OF_ROWS = 100
_decode = msgspec.json.Decoder(dict[str, Any]).decode
_encode = msgspec.json.Encoder().encode


class JsonLines:
    """A line that is no object, or too long, is a row that cannot be read; an empty one is none."""

    def __init__(self, path: Path) -> None:
        """Raises InvalidFile: it cannot be read, or its first rows hold no object."""
        self._file = LineFile(path, ROW_BYTES)
        first = [row.values for row in islice(self.rows(), _COLUMNS_OF_ROWS) if row.values]
        if not first:
            raise InvalidFile(path, "no row of it is a JSON object; it should hold one a line")
        self.columns = tuple(dict.fromkeys(name for values in first for name in values))

    def rows(self) -> Iterator[InputRow]:
        number = 0
        for line, raw in self._file.lines():
            if isinstance(raw, bytes) and not raw.strip():
                continue
            yield _row(number, line, raw)
            number += 1

    def expected_rows(self, read: int) -> int | None:
        share = self._file.share_read()
        return round(read / share) if share else None


def _row(number: int, line: int, raw: bytes | LongLine) -> InputRow:
    if isinstance(raw, LongLine):
        return InputRow(number, 0, problem=f"line {line}: {too_large()}")
    try:
        return InputRow(number, len(raw), _decode(raw))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return InputRow(number, 0, problem=f"line {line} is no JSON object: {error}")


def write(file: BinaryIO, rows: Iterable[dict[str, Any]]) -> None:
    for row in rows:
        file.write(_encode(row) + b"\n")
