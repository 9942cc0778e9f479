"""Forms with files (multipart/form-data, RFC 7578), read as they come: bytes in, events out.

A part's content is handed on in pieces, so a file need not fit into memory. Only the delimiters are
looked for; the last bytes of a piece, which may begin one, wait for the next.
"""

import re
from collections.abc import Iterator

import msgspec

from kairos.errors import InvalidRequest

_HEAD_BYTES = 8 << 10  # of a part
_PARTS = 16
_NAME = re.compile(rb'(?:^|;)[ \t]*name="([^"\r\n]{0,256})"', re.IGNORECASE)
_FILENAME = re.compile(rb';[ \t]*filename="([^"\r\n]{0,1024})"', re.IGNORECASE)
_BOUNDARY = re.compile(r';\s*boundary=(?:"([^"]{1,70})"|([^\s;"]{1,70}))', re.IGNORECASE)


class PartBegan(msgspec.Struct, frozen=True):
    name: str
    filename: str | None  # None: it is a plain field


class PartContent(msgspec.Struct, frozen=True):
    data: bytes


class PartEnded(msgspec.Struct, frozen=True):
    pass


FormEvent = PartBegan | PartContent | PartEnded


class NoForm(InvalidRequest):
    """A body is no form, though a form is asked for."""

    code = "invalid_form"

    def __init__(self, problem: str) -> None:
        super().__init__(f"the body must be multipart/form-data with a file, but {problem}")


def boundary_of(content_type: str) -> bytes:
    """Raises NoForm."""
    found = _BOUNDARY.search(content_type)
    if found is None or not content_type.lower().startswith("multipart/form-data"):
        raise NoForm(f"its type is '{content_type[:100]}'")
    return (found[1] or found[2]).encode("latin-1", "replace")


class FormReader:
    def __init__(self, boundary: bytes) -> None:
        self._delimiter = b"\r\n--" + boundary
        self._buffer = bytearray(b"\r\n")  # as if a line had ended before the first delimiter
        self._step = self._preamble
        self._parts = 0
        self.is_whole = False

    def feed(self, data: bytes) -> Iterator[FormEvent]:
        """What so much more of the body says. To be read to its end.

        Raises:
            NoForm: it is none.
        """
        self._buffer += data
        while not self.is_whole and (found := self._step()) is not None:
            yield from found

    # Each step takes what it can from the buffer; None: it needs more.

    def _preamble(self) -> list[FormEvent] | None:
        at = self._buffer.find(self._delimiter)
        if at < 0:
            del self._buffer[: max(0, len(self._buffer) - len(self._delimiter) + 1)]
            return None
        del self._buffer[: at + len(self._delimiter)]
        self._step = self._after_delimiter
        return []

    def _after_delimiter(self) -> list[FormEvent] | None:
        if len(self._buffer) < 2:
            return None
        if self._buffer.startswith(b"--"):
            self.is_whole = True
            return []
        end = self._buffer.find(b"\r\n")
        if end < 0 and len(self._buffer) <= _HEAD_BYTES:
            return None
        if end < 0 or self._buffer[:end].strip(b" \t"):
            raise NoForm("a delimiter is followed by something else than the end of a line")
        self._step = self._head
        return []  # the line's end stays: a head without lines is two of them

    def _head(self) -> list[FormEvent] | None:
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            if len(self._buffer) > _HEAD_BYTES:
                raise NoForm(f"a part's head has over {_HEAD_BYTES} bytes")
            return None
        self._parts += 1
        if self._parts > _PARTS:
            raise NoForm(f"it has over {_PARTS} parts")
        head = bytes(self._buffer[:end])
        del self._buffer[: end + 4 - 2]  # a part without content begins with its delimiter
        began = _began(head)
        self._step = self._content_start
        return [began]

    def _content_start(self) -> list[FormEvent] | None:
        """The line's end before the content may be the delimiter's own."""
        if len(self._buffer) < len(self._delimiter):
            return None
        if not self._buffer.startswith(self._delimiter):
            del self._buffer[:2]
        self._step = self._content
        return []

    def _content(self) -> list[FormEvent] | None:
        at = self._buffer.find(self._delimiter)
        if at < 0:
            ready = len(self._buffer) - len(self._delimiter) + 1
            if ready <= 0:
                return None
            piece = bytes(self._buffer[:ready])
            del self._buffer[:ready]
            return [PartContent(piece)]
        piece = bytes(self._buffer[:at])
        del self._buffer[: at + len(self._delimiter)]
        self._step = self._after_delimiter
        return [PartContent(piece), PartEnded()] if piece else [PartEnded()]


def _began(head: bytes) -> PartBegan:
    for line in head.split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.strip().lower() == b"content-disposition":
            told, file = _NAME.search(value[value.find(b";") :]), _FILENAME.search(value)
            if told is not None:
                filename = None if file is None else file[1].decode("utf-8", "replace")
                return PartBegan(told[1].decode("utf-8", "replace"), filename)
    raise NoForm("a part has no name")
