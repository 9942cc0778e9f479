"""Lines of a file, plain or gzip, bounded in length.

A byte order mark shows that a file is UTF-16 or UTF-32; its lines are converted to UTF-8. Carriage
returns end the lines of a file whose first 64 KiB have no line feed.
"""

import codecs
from collections.abc import Callable, Iterator
from io import BufferedIOBase, BufferedReader, RawIOBase
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from kairos.core import InvalidFile
from kairos.host import UNREADABLE, open_content

_PIECE_BYTES = 1 << 16
_T = TypeVar("_T")
_MARKS = {  # longer marks before their prefixes
    codecs.BOM_UTF32_LE: "utf-32-le",
    codecs.BOM_UTF32_BE: "utf-32-be",
    codecs.BOM_UTF16_LE: "utf-16-le",
    codecs.BOM_UTF16_BE: "utf-16-be",
    codecs.BOM_UTF8: "utf-8",
}


class LongLine(NamedTuple):
    """Line longer than the bound, without its content."""

    quotes: int  # number of double quotes in it


class LineFile:
    def __init__(self, path: Path, limit_bytes: int) -> None:
        self.path = path
        self._limit_bytes = limit_bytes
        self._share = 0.0

    def lines(self) -> Iterator[tuple[int, bytes | LongLine]]:
        """Yield lines with their numbers, from 1, and their line ends.

        At most the bound is held in memory of a longer line.

        Raises:
            InvalidFile: the file cannot be read to its end.
        """
        number = 0
        try:
            for number, line in enumerate(self._parts(self._bounded), 1):
                yield number, line
        except UNREADABLE as error:
            where = number + 1 if number else None
            raise InvalidFile(self.path, f"cannot be read: {error}", line=where) from error

    def pieces(self) -> Iterator[bytes]:
        """Yield the content in pieces of a few KiB.

        Raises:
            InvalidFile: the file cannot be read to its end.
        """
        try:
            yield from self._parts(lambda file: iter(lambda: file.read(_PIECE_BYTES), b""))
        except UNREADABLE as error:
            raise InvalidFile(self.path, f"cannot be read: {error}") from error

    def begins_with(self, sign: bytes) -> bool:
        """Return whether the content begins with these bytes, after any blanks."""
        return next(filter(bytes.strip, self.pieces()), b"").lstrip().startswith(sign)

    def expected_rows(self, read: int) -> int | None:
        """Return the rows of the file after `read` ones of its last reader; None: not known."""
        return round(read / min(self._share, 1.0)) if self._share else None

    def _parts(self, split: Callable[[BufferedIOBase], Iterator[_T]]) -> Iterator[_T]:
        size = self.path.stat().st_size
        with open_content(self.path) as (file, position):
            for part in split(_in_utf8(file)):
                self._share = position() / max(size, 1)
                yield part
            self._share = 1.0

    def _bounded(self, file: BufferedIOBase) -> Iterator[bytes | LongLine]:
        while line := file.readline(self._limit_bytes + 1):
            if len(line) <= self._limit_bytes:
                yield line
                continue
            quotes = line.count(b'"')
            while line and not line.endswith(b"\n"):
                line = file.readline(self._limit_bytes)
                quotes += line.count(b'"')
            yield LongLine(quotes)


def _in_utf8(file: BufferedIOBase) -> BufferedIOBase:
    """Return the file as UTF-8, without its byte order mark, and with line feeds that end lines."""
    first = file.read(_PIECE_BYTES)
    mark = next((each for each in _MARKS if first.startswith(each)), b"")
    encoding = _MARKS.get(mark, "utf-8")
    file.seek(len(mark))
    has_feeds = b"\n" in first or b"\r" not in first
    if encoding == "utf-8" and has_feeds:
        return file
    return BufferedReader(_Pieces(_pieces(file, encoding, has_feeds)), _PIECE_BYTES)


def _pieces(file: BufferedIOBase, encoding: str, has_feeds: bool) -> Iterator[bytes]:
    """Yield the content of a file in UTF-8. Raises ValueError: the file ends within a character."""
    decoder = codecs.getincrementaldecoder(encoding)("surrogatepass")  # only its row fails
    while piece := file.read(_PIECE_BYTES):
        text = decoder.decode(piece)
        text = text if has_feeds else text.replace("\r", "\n")
        yield text.encode("utf-8", "surrogatepass")
    decoder.decode(b"", final=True)


class _Pieces(RawIOBase):
    """File made of pieces of bytes."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces, self._left = pieces, b""

    def readable(self) -> bool:
        return True

    def readinto(self, target: Any) -> int:
        while not self._left:
            piece = next(self._pieces, None)
            if piece is None:
                return 0
            self._left = piece
        size = min(len(target), len(self._left))
        target[:size], self._left = self._left[:size], self._left[size:]
        return size
