"""The lines of a file, plain or gzip, none longer than a bound."""

from collections.abc import Iterator
from io import BufferedIOBase
from pathlib import Path
from typing import NamedTuple

from kairos.errors import InvalidFile
from kairos.workload.files import UNREADABLE, open_content

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class LongLine(NamedTuple):
    """One longer than the bound: what is left of it."""

    quotes: int  # how many double quotes there were in it


class LineFile:
    def __init__(self, path: Path, limit_bytes: int) -> None:
        self.path = path
        self._limit_bytes = limit_bytes
        self._share = 0.0

    def lines(self) -> Iterator[tuple[int, bytes | LongLine]]:
        """Numbers from 1 and lines with their ends. Of a line longer than the bound no more than
        that is held.

        Raises:
            InvalidFile: the file cannot be read to its end.
        """
        number = 0
        try:
            size = self.path.stat().st_size
            with open_content(self.path) as (file, position):
                for number, line in enumerate(self._bounded(file), 1):
                    self._share = position() / max(size, 1)
                    yield number, _unmarked(line) if number == 1 else line
                self._share = 1.0
        except UNREADABLE as error:
            where = number + 1 if number else None
            raise InvalidFile(self.path, f"cannot be read: {error}", line=where) from error

    def share_read(self) -> float:
        """Of the file's bytes, those that were read when `lines` was left last; 0 to 1."""
        return min(self._share, 1.0)

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


def _unmarked(line: bytes | LongLine) -> bytes | LongLine:
    return line.removeprefix(_BYTE_ORDER_MARK) if isinstance(line, bytes) else line
