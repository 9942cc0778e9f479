"""Tables in JSON: an object per line, or one list of objects, plain or gzip."""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from kairos.core import InvalidFile
from kairos.workflows.run.lines import LineFile, LongLine
from kairos.workflows.run.rows import ROW_BYTES, InputRow, too_large

_COLUMNS_OF_ROWS = 100
_SIGNS = re.compile(rb'\\.|["\[\]{},]', re.DOTALL)
_QUOTED_OR_NO_NUMBER = re.compile(rb'("(?:[^"\\]|\\.)*+")|-?\b(?:NaN|Infinity)\b')
_decode = msgspec.json.Decoder(dict[str, Any]).decode
_encode = msgspec.json.Encoder().encode


class JsonLines:
    """JSON table. A line that is too long or not an object is unreadable; empty lines are skipped.

    `NaN` and `Infinity`, which are not JSON but are written by Python's `json`, are read as null.
    """

    repeated: tuple[str, ...] = ()

    def __init__(self, path: Path, *, may_be_list: bool = False) -> None:
        """Read the first rows.

        `may_be_list`: whether a file that begins with `[` is one list, whose items are the rows.

        Raises:
            InvalidFile: the file cannot be read, or no row is an object.
        """
        self._file = LineFile(path, ROW_BYTES)
        self._is_list = may_be_list and self._file.begins_with(b"[")
        names: dict[str, None] = {}
        self._is_empty, has_object = True, False
        for row in self.rows():
            self._is_empty = False
            has_object |= row.values is not None
            names |= dict.fromkeys(row.values or ())
            if has_object and row.number >= _COLUMNS_OF_ROWS - 1:
                break
        if not self._is_empty and not has_object:
            raise InvalidFile(path, "no row is a JSON object; there should be one per line")
        self.columns = tuple(names)

    def rows(self) -> Iterator[InputRow]:
        number = 0
        if self._is_list:
            for number, raw in enumerate(_items(self._file)):
                yield _row(number, f"item {number}", raw)
            return
        for line, raw in self._file.lines():
            if isinstance(raw, bytes) and not raw.strip():
                continue
            yield _row(number, f"line {line}", raw)
            number += 1

    def expected_rows(self, read: int) -> int | None:
        return self._file.expected_rows(read)

    def may_have(self, column: str) -> bool:
        """Return whether a row may have a column, if necessary by reading the whole table."""
        if self._is_empty or column in self.columns:
            return True
        return any(column in row.values for row in self.rows() if row.values is not None)


def _row(number: int, where: str, raw: bytes | LongLine) -> InputRow:
    if isinstance(raw, LongLine):
        return InputRow(number, 0, problem=f"{where}: {too_large()}")
    try:
        return InputRow(number, len(raw), _decode(raw))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        if b"NaN" in raw or b"Infinity" in raw:
            without = _QUOTED_OR_NO_NUMBER.sub(lambda found: found[1] or b"null", raw)
            if without != raw:
                return _row(number, where, without)
        return InputRow(number, 0, problem=f"{where} is not a JSON object: {error}")


def _items(file: LineFile) -> Iterator[bytes | LongLine]:
    """Yield the items of a list, none longer than a row may be.

    Raises:
        InvalidFile: the list is not closed, or something follows it.
    """
    bounds, escape = _ListBounds(), b""
    item, is_large, has_items = bytearray(), False, False
    for read in file.pieces():
        piece = escape + read
        escape = piece[len(piece.rstrip(b"\\")) :]
        piece, begun = piece.removesuffix(escape), 0
        for sign in _SIGNS.finditer(piece):
            if bounds.begins(sign[0]):
                begun = sign.end()
            elif bounds.ends(sign[0]):
                item += piece[begun : sign.start()]
                begun = sign.end()
                if has_items or not bounds.is_closed or item.strip():
                    yield LongLine(0) if is_large or len(item) > ROW_BYTES else bytes(item)
                item, is_large, has_items = bytearray(), False, True
        item += piece[begun:]
        if len(item) > ROW_BYTES:
            item, is_large = bytearray(), True
    if not bounds.is_closed or item.strip() or is_large:
        said = "the list at its start is not closed, or something follows it"
        raise InvalidFile(file.path, said)


class _ListBounds:
    """Bounds of a list and its items, found by the characters outside its texts."""

    def __init__(self) -> None:
        self._depth, self._in_text, self.is_closed = 0, False, False

    def begins(self, sign: bytes) -> bool:
        """Read a character; return whether the list begins with it."""
        if sign == b'"':
            self._in_text = not self._in_text
        elif not self._in_text and sign in b"[{":
            self._depth += 1
            return self._depth == 1 and not self.is_closed
        return False

    def ends(self, sign: bytes) -> bool:
        """Return whether an item of the list ends with a character that `begins` did not accept."""
        if self._in_text or self.is_closed or sign not in b"]},":
            return False
        self._depth -= sign != b","
        self.is_closed = self._depth == 0
        return self.is_closed or (sign == b"," and self._depth == 1)


def write(file: BinaryIO, rows: Iterable[dict[str, Any]]) -> None:
    for row in rows:
        file.write(_encode(row) + b"\n")
