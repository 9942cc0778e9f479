"""Tables in CSV: as in RFC 4180, and as spreadsheets, libraries and people write it.

A quote opens a cell only at the start of the cell. Within another cell it is an ordinary character.
A quoted cell may span lines if its closing quote stands before a separator or the end of a line.
Otherwise the opening quote is a stray one: the record that has it cannot be read, and the next line
is read as a separate record.
"""

import csv
import io
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, Literal, NamedTuple

import msgspec

from kairos.core import InvalidFile
from kairos.workflows.run.lines import LineFile, LongLine
from kairos.workflows.run.rows import ROW_BYTES, InputRow, too_large

_SEPARATORS = (",", "\t", ";")  # of a header; the first that it has
_SEP_LINE = re.compile(r"sep=(.)\r?\n?")  # Excel's own first line
_QUOTED = re.compile(r'(?:[^"]++|"")*+')  # up to a quote that is not doubled
_STRAY = "a quote that opens here is never closed: close it, or double the quotes of a value"
_encode = msgspec.json.Encoder().encode

_State = Literal["ended", "open", "stray"]
_Line = tuple[int, bytes | LongLine]


class _Record(NamedTuple):
    """Cells of a record, or the reason why it has none; it spans the lines `line` to `last`."""

    line: int
    last: int
    values: list[str] | None
    problem: str = ""


class Csv:
    """CSV table. A record that is too large, or has a wrong number of values, is unreadable."""

    def __init__(self, path: Path, separator: str | None = None) -> None:
        """Read the header.

        `separator`: between values; None: the one in the header, of comma, tab and semicolon.

        Raises:
            InvalidFile: the file cannot be read, or its first record does not name columns.
        """
        self._file = LineFile(path, ROW_BYTES)
        self._names: list[str] = []
        self._separator, self._skipped = self._layout(separator)
        header = next(self._records(), _Record(1, 1, []))
        if header.values is None:
            raise InvalidFile(path, f"no column names: {header.problem}", line=header.line)
        if any("\0" in name for name in header.values):
            said = "no column names: this is not UTF-8; save the file as UTF-8"
            raise InvalidFile(path, said, line=header.line)
        self._names = header.values
        named = [name for name in header.values if header.values.count(name) == 1]
        self.columns = tuple(named)
        self.repeated = tuple(sorted({*header.values} - {*named, ""}))
        self._fewest = max((at for at, name in enumerate(self._names, 1) if name), default=0)

    def rows(self) -> Iterator[InputRow]:
        for number, record in enumerate(self._records(), -1):
            if number >= 0:
                yield self._row(number, record)

    def expected_rows(self, read: int) -> int | None:
        return self._file.expected_rows(read)

    def may_have(self, column: str) -> bool:
        return column in self.columns or not self._names

    def _layout(self, separator: str | None) -> tuple[str, int]:
        """Return the separator, and the number of lines before the header."""
        for number, line in self._file.lines():
            if isinstance(line, LongLine) or not line.strip():
                continue
            text = line.decode("utf-8", "replace")
            if separator is None and (told := _SEP_LINE.fullmatch(text)):
                return told[1], number
            bare = re.sub(r'"(?:[^"]|"")*+"', "", text)
            found = next((each for each in _SEPARATORS if each in bare), ",")
            return separator or found, 0
        return separator or ",", 0

    def _row(self, number: int, record: _Record) -> InputRow:
        values, problem = record.values, record.problem
        if values is not None and not self._fits(values):
            problem = f"{len(values)} values for {len(self._names)} columns"
        if values is None or problem:
            where = f"line {record.line}"
            if record.last > record.line:
                where = f"lines {record.line} to {record.last}"
            return InputRow(number, 0, problem=f"{where}: {problem}")
        named = dict(zip(self._names, values, strict=False))
        if len(self.columns) < len(self._names):
            named = {name: named.get(name, "") for name in self.columns}
        return InputRow(number, sum(map(len, values)), named)

    def _fits(self, values: Sequence[str]) -> bool:
        """Return whether each value has a column, and each named column a value.

        Spreadsheets write separators for empty cells beyond the table.
        """
        most = len(self._names)
        return len(values) == most or (self._fewest <= len(values) and not any(values[most:]))

    def _records(self) -> Iterator[_Record]:
        lines = self._lines(self._skipped)
        while True:
            record = _Growing(self._separator)
            for number, line in lines:
                if not record.lines and self._is_blank(line):
                    continue
                state = record.take(number, line)
                if state != "open":
                    break
            else:
                if not record.lines:
                    return
                state = "stray"
            if state != "ended" or (record.opened and self._was_several(record)):
                lines = self._again(record, lines)
                yield _Record(record.first, record.opened, None, _STRAY)
                continue
            yield from record.values()

    def _lines(self, after: int) -> Iterator[_Line]:
        return (each for each in self._file.lines() if each[0] > after)

    def _is_blank(self, line: bytes | LongLine) -> bool:
        """Return whether a line has no record.

        With a single column, a line of blanks is a value. Separators make empty values, also where
        they are tabs.
        """
        if isinstance(line, LongLine) or (self._names and self._separator.encode() in line):
            return False
        return not (line.strip(b"\r\n") if len(self._names) == 1 else line.strip())

    def _again(self, record: "_Growing", lines: Iterator[_Line]) -> Iterator[_Line]:
        """Return the lines after the one with a stray quote."""
        if record.is_large:
            return self._lines(record.opened)
        return chain([each for each in record.lines if each[0] > record.opened], lines)

    def _was_several(self, record: "_Growing") -> bool:
        """Return whether a record that does not fit is several rows, joined by a stray quote."""
        if not self._names or record.is_large or self._fits(record.cells):
            return False
        for number, line in record.lines:
            if number > record.opened:
                alone = _Growing(self._separator)
                if alone.take(number, line) != "ended" or not self._fits(alone.cells):
                    return False
        return True


class _Growing:
    """Record that grows line by line.

    Attributes:
        first: the number of its first line.
        opened: the number of the line with the first quote that is open at the end of its line, or
            0.
        lines: as read; empty once they are too large.
        cells: the finished cells of the last record. A line has several records if only carriage
            returns end them.
    """

    def __init__(self, separator: str) -> None:
        self._separator = separator
        self._bare = re.compile(rf"[^{re.escape(separator)}\r\n]*+")
        self.first = self.opened = self._last = self._size = 0
        self.lines: list[_Line] = []
        self.cells: list[str] = []
        self._earlier: list[list[str]] = []
        self._part: list[str] = []
        self._is_open = self.is_large = self._is_torn = False

    def take(self, number: int, line: bytes | LongLine) -> _State:
        """Read a line. Stray: a quote opened on an earlier line is not closed correctly."""
        self.first, self._last = self.first or number, number
        if isinstance(line, LongLine):
            self._size = ROW_BYTES + 1
            self._drop((number, b""))
            self._is_open ^= line.quotes % 2 == 1
        else:
            self._size += len(line)
            self.lines.append((number, line))
            if self._size > ROW_BYTES:
                self._drop(self.lines[-1])
            if not self._read(self._text(line)):
                return "stray"
        if not self._is_open:
            return "ended"
        self.opened = self.opened or number
        return "open"

    def values(self) -> Iterator[_Record]:
        """Yield the records, once complete."""
        if self.is_large:
            yield _Record(self.first, self._last, None, too_large())
        elif self._is_torn:
            yield _Record(self.first, self._last, None, "this is not UTF-8; save it as UTF-8")
        else:
            for each in (*self._earlier, self.cells):
                yield _Record(self.first, self._last, each)

    def _drop(self, last: _Line) -> None:
        """Drop the content of a record that is too large; only its end is looked for."""
        self.is_large = True
        self.lines, self.cells, self._part = [last], [], []

    def _text(self, line: bytes) -> str:
        try:
            return line.decode()
        except UnicodeDecodeError:
            self._is_torn = True
            return line.decode("utf-8", "replace")

    def _read(self, text: str) -> bool:
        """Return whether a quote that was open is closed correctly; true if none was."""
        if not self._is_open and '"' not in text:
            bare = text.removesuffix("\n").removesuffix("\r")
            if "\r" not in bare:
                self.cells = bare.split(self._separator)
                return True
        at, size, was_open = 0, len(text), self._is_open
        while True:
            if self._is_open or text.startswith('"', at):
                at += not self._is_open
                self._is_open = True
                end = self._quoted(text, at)
                if end == size:
                    return True
                rest = text[end + 1 : end + 2]
                if rest not in (self._separator, "\r", "\n", ""):
                    if was_open:
                        return False
                    at = self._bare_cell(text, end + 1)
                else:
                    self._cell()
                    at = end + 1
                self._is_open = was_open = False
            else:
                at = self._bare_cell(text, at)
            if text.startswith(self._separator, at):
                at += 1
                continue
            at += 2 if text.startswith("\r\n", at) else 1
            if at >= size:
                return True
            self._earlier.append(self.cells)
            self.cells = []

    def _quoted(self, text: str, at: int) -> int:
        """Add quoted text to the cell; return where it ends."""
        found = _QUOTED.match(text, at)
        assert found is not None, "it may be empty"
        if not self.is_large:
            self._part.append(found[0].replace('""', '"'))
        return found.end()

    def _bare_cell(self, text: str, at: int) -> int:
        found = self._bare.match(text, at)
        assert found is not None, "it may be empty"
        self._part.append(found[0])
        self._cell()
        return found.end()

    def _cell(self) -> None:
        if not self.is_large:
            self.cells.append("".join(self._part))
        self._part = []


def write(
    file: BinaryIO, columns: Sequence[str], rows: Iterable[dict[str, Any]], separator: str = ","
) -> None:
    """Write a header and rows: texts as they are, nothing for null, other values as JSON."""
    text = io.TextIOWrapper(file, "utf-8", newline="")
    try:
        # Python before 3.13 quotes a carriage return, which ends a line as well, only if it is in
        # the line terminator. The written lines end with "\n" alone.
        writer = csv.writer(_Lines(text), delimiter=separator, lineterminator="\r\n")
        writer.writerow(columns)
        for row in rows:
            writer.writerow([_text(row.get(name)) for name in columns])
    finally:
        text.detach()  # so that the file stays open


class _Lines:
    """File that writes lines ending with a line feed alone."""

    def __init__(self, file: io.TextIOWrapper) -> None:
        self._file = file

    def write(self, line: str) -> int:
        return self._file.write(line.removesuffix("\r\n") + "\n")


def _text(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else _encode(value).decode()
