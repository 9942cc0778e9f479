"""Tables as CSV (RFC 4180): the names of the columns first, every value a text."""

import csv
import io
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import msgspec

from kairos.errors import InvalidFile
from kairos.live.runs.lines import LineFile, LongLine
from kairos.live.runs.rows import ROW_BYTES, InputRow, too_large

_encode = msgspec.json.Encoder().encode


class _Record(NamedTuple):
    """`line`: on which it, or the quote it shares with others, begins."""

    line: int
    values: list[str] | None
    problem: str = ""


class Csv:
    """A record with too many or too few values, or too large, is a row that cannot be read."""

    def __init__(self, path: Path) -> None:
        """Raises InvalidFile: it cannot be read, or its first record is no list of names."""
        # Of the whole process, as the module knows no other; records are bounded before it.
        csv.field_size_limit(ROW_BYTES)
        self._file = LineFile(path, ROW_BYTES)
        header = next(self._records(), _Record(1, None, "there is none"))
        names = header.values
        if names is None:
            raise InvalidFile(path, f"no names of columns: {header.problem}", line=header.line)
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise InvalidFile(path, f"two columns are called '{twice[0]}'", line=header.line)
        self.columns = tuple(names)

    def rows(self) -> Iterator[InputRow]:
        for number, record in enumerate(self._records(), -1):
            if number >= 0:
                yield self._row(number, record)

    def expected_rows(self, read: int) -> int | None:
        share = self._file.share_read()
        return round(read / share) if share else None

    def _row(self, number: int, record: _Record) -> InputRow:
        values, problem = record.values, record.problem
        if values is not None and len(values) != len(self.columns):
            problem = f"{len(values)} values for {len(self.columns)} columns"
        if values is None or problem:
            return InputRow(number, 0, problem=f"line {record.line}: {problem}")
        return InputRow(number, sum(map(len, values)), dict(zip(self.columns, values, strict=True)))

    def _records(self) -> Iterator[_Record]:
        """Lines are joined while a quote is open: as one within a value is doubled, an even number
        of them ends a record. One that grows too large is dropped up to its end. Where a quote
        stands alone in a value without any, what was joined is several records."""
        begun, parts, size, quotes = 0, [], 0, 0
        for number, line in self._file.lines():
            begun = begun or number
            if isinstance(line, LongLine):
                size, quotes = ROW_BYTES + 1, quotes + line.quotes
            else:
                size, quotes = size + len(line), quotes + line.count(b'"')
                parts.append(line)
            if size > ROW_BYTES:
                parts.clear()
            if quotes % 2 == 0:
                if size > ROW_BYTES or not _is_blank(parts):
                    yield from _parsed(begun, parts, size)
                begun, parts, size, quotes = 0, [], 0, 0
        if quotes % 2:
            yield _Record(begun, None, "a quote that is opened here is never closed")


def _is_blank(parts: list[bytes]) -> bool:
    return len(parts) == 1 and not parts[0].strip()


def _parsed(line: int, parts: list[bytes], size: int) -> Iterator[_Record]:
    if size > ROW_BYTES:
        yield _Record(line, None, too_large())
        return
    try:
        text = b"".join(parts).decode()
        for values in csv.reader(io.StringIO(text, newline=""), strict=True):
            yield _Record(line, values)
    except UnicodeDecodeError as error:
        yield _Record(line, None, f"no UTF-8: {error.reason}")
    except csv.Error as error:
        yield _Record(line, None, str(error))


def write(file: BinaryIO, columns: Sequence[str], rows: Iterable[dict[str, Any]]) -> None:
    """What is no text is written as JSON, and nothing for null."""
    text = io.TextIOWrapper(file, "utf-8", newline="")
    try:
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(columns)
        for row in rows:
            writer.writerow([_text(row.get(name)) for name in columns])
    finally:
        text.detach()  # it would close the file


def _text(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else _encode(value).decode()
