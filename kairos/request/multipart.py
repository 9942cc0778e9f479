"""Streaming parser of forms with files (multipart/form-data, RFC 7578): bytes in, events out.

A file need not fit into memory. python-multipart parses; this module adds bounds.
"""

from collections.abc import Collection

import msgspec
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from kairos.core import InvalidRequest

_HEAD_BYTES = 4 << 10  # of a line of a part's head
_HEAD_LINES = 8
_PARTS = 16
_BOUNDARY = 70  # bytes at most, by RFC 2046


class PartBegan(msgspec.Struct, frozen=True):
    name: str
    filename: str | None  # None: it is a plain field


class PartContent(msgspec.Struct, frozen=True):
    data: bytes


class PartEnded(msgspec.Struct, frozen=True):
    pass


FormEvent = PartBegan | PartContent | PartEnded


class NoForm(InvalidRequest):
    """The body is not a valid form; the message says why."""

    code = "invalid_form"

    def __init__(self, problem: str) -> None:
        super().__init__(f"the body must be multipart/form-data with a file, but {problem}")


def boundary_of(content_type: str) -> bytes:
    """Return the boundary.

    Raises:
        NoForm: The content type is not multipart/form-data with a valid boundary.
    """
    kind, options = parse_options_header(content_type)
    boundary = options.get(b"boundary", b"")
    if kind != b"multipart/form-data" or not 0 < len(boundary) <= _BOUNDARY:
        raise NoForm(f"its type is '{content_type[:100]}'")
    return boundary


class FormReader:
    def __init__(self, boundary: bytes, most_parts: int = _PARTS) -> None:
        self.is_whole, self._most_parts = False, most_parts
        self._found: list[FormEvent] = []
        self._parts = 0
        self._field, self._value, self._disposition = b"", b"", b""
        self._parser = MultipartParser(
            boundary,
            {
                "on_part_begin": self._part_begins,
                "on_header_field": self._field_comes,
                "on_header_value": self._value_comes,
                "on_header_end": self._head_line_ends,
                "on_headers_finished": self._head_ends,
                "on_part_data": self._content_comes,
                "on_part_end": lambda: self._found.append(PartEnded()),
                "on_end": self._ends,
            },
            max_header_count=_HEAD_LINES,
            max_header_size=_HEAD_BYTES,
        )

    def feed(self, data: bytes) -> list[FormEvent]:
        """Parse more of the body, and return the events found.

        Raises:
            NoForm: The body is malformed.
        """
        if not self.is_whole:
            try:
                self._parser.write(data)
            except FormParserError as error:
                raise NoForm(str(error)) from None
        found, self._found = self._found, []
        return found

    def _part_begins(self) -> None:
        self._parts += 1
        if self._parts > self._most_parts:
            raise NoForm(f"it has more than {self._most_parts} parts")
        self._disposition = b""

    def _field_comes(self, data: bytes, start: int, end: int) -> None:
        self._field += data[start:end]

    def _value_comes(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def _head_line_ends(self) -> None:
        if self._field.lower() == b"content-disposition":
            self._disposition = self._value
        self._field, self._value = b"", b""

    def _head_ends(self) -> None:
        _, options = parse_options_header(self._disposition)
        if b"name" not in options:
            raise NoForm("a part has no name")
        filename = options.get(b"filename")
        told = None if filename is None else filename.decode("utf-8", "replace")
        self._found.append(PartBegan(options[b"name"].decode("utf-8", "replace"), told))

    def _content_comes(self, data: bytes, start: int, end: int) -> None:
        self._found.append(PartContent(data[start:end]))

    def _ends(self) -> None:
        self.is_whole = True


_FIELD_BYTES = 1 << 10  # of a field that is read, at most
_CALL_PARTS = 256  # of a form that goes on to an engine, where they are looked at


def fields_of(content_type: bytes, content: bytes, names: Collection[str]) -> dict[str, str]:
    """Return the named fields of a form, of at most 1 KB each; nothing if parsing fails.

    A malformed form is left for the engine to judge.
    """
    found: dict[str, bytearray] = {}
    wanted: bytearray | None = None
    try:
        reader = FormReader(boundary_of(content_type.decode("latin-1")), _CALL_PARTS)
        for event in reader.feed(content):
            if isinstance(event, PartBegan):
                wanted = None
                if event.filename is None and event.name in names and event.name not in found:
                    wanted = found[event.name] = bytearray()
            elif isinstance(event, PartContent) and wanted is not None:
                wanted += event.data[: _FIELD_BYTES + 1 - len(wanted)]
    except NoForm:
        pass
    texts = {name: value.decode("utf-8", "replace") for name, value in found.items()}
    return {name: text for name, text in texts.items() if len(text) <= _FIELD_BYTES}
