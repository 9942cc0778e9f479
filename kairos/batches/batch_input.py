"""Lines of a batch's input: each a call, with the client's name for it."""

import codecs
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import msgspec

ERRORS = 100  # reported for a file
LINE_BYTES = 32 << 20  # limit of a line, independent of the limit of a call's body
_LONGEST_NAME = 512  # characters
_OTHER_ENCODINGS = {codecs.BOM_UTF16_LE: "UTF-16", codecs.BOM_UTF16_BE: "UTF-16"}


class InputLine(msgspec.Struct, frozen=True):
    """Line in OpenAI's format."""

    custom_id: str
    method: str
    url: str
    body: msgspec.Raw


class LineError(msgspec.Struct, frozen=True):
    """Error of an input line, in OpenAI's format."""

    code: str
    message: str
    line: int | None = None  # from 1
    param: str | None = None


class PlacedLine(msgspec.Struct, frozen=True):
    """Place of a line in the file: number, from 1, offset, and size in bytes."""

    number: int
    offset: int
    size: int


class _Body(msgspec.Struct):
    stream: bool | None = None
    background: bool | None = None
    model: str | None = None


class Checked(msgspec.Struct, frozen=True):
    total: int  # lines that are calls
    errors: tuple[LineError, ...]
    model: str | None = None  # None: lines name several models, or none


_line = msgspec.json.Decoder(InputLine)
_body = msgspec.json.Decoder(_Body)


def placed_lines(file: BinaryIO) -> Iterator[tuple[PlacedLine, bytes]]:
    """Yield lines that are not blank, without a byte order mark of UTF-8.

    A line above the size limit is split, and each part is invalid.
    """
    number = offset = 0
    while read := file.readline(LINE_BYTES + 1):
        number += 1
        data = read.removeprefix(codecs.BOM_UTF8) if number == 1 else read
        if data and not data.isspace():
            yield PlacedLine(number, offset + len(read) - len(data), len(data)), data
        offset += len(read)


def read_line(data: bytes) -> InputLine:
    """Decode a line that was checked."""
    return _line.decode(data)


def check_input(path: Path, endpoint: str, max_lines: int) -> Checked:
    """Check a whole input. Raises OSError: it cannot be read."""
    names: set[str] = set()
    errors: list[LineError] = []
    models: set[str | None] = set()
    total = 0
    with path.open("rb") as file:
        if encoding := _OTHER_ENCODINGS.get(file.read(2)):
            said = f"the file is not UTF-8 but {encoding}: save it as UTF-8"
            return Checked(0, (LineError("invalid_encoding", said, 1),))
        file.seek(0)
        for place, data in placed_lines(file):
            total += 1
            if total > max_lines:
                errors.append(LineError("too_many_lines", f"there are more than {max_lines} lines"))
            elif (found := _problem(data, endpoint, names, place.number)) is not None:
                errors.append(found)
            elif len(models) < 2:
                models.add(_body.decode(_line.decode(data).body).model)
            if len(errors) >= ERRORS or total > max_lines:
                break
    if not total:
        errors.append(LineError("empty_file", "the input has no lines"))
    return Checked(total, tuple(errors), models.pop() if len(models) == 1 else None)


def _problem(data: bytes, endpoint: str, names: set[str], number: int) -> LineError | None:
    try:
        line = _line.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        code = "invalid_line" if isinstance(error, msgspec.ValidationError) else "invalid_json_line"
        return LineError(code, f"this line is not a request: {error}"[:300], number)
    if line.method != "POST":
        return LineError("invalid_method", "method must be POST", number, "method")
    if line.url != endpoint:
        said = f"url must be the batch's endpoint, {endpoint}"
        return LineError("mismatched_url", said, number, "url")
    if not 0 < len(line.custom_id) <= _LONGEST_NAME:
        said = f"custom_id must have 1 to {_LONGEST_NAME} characters"
        return LineError("invalid_custom_id", said, number, "custom_id")
    if line.custom_id in names:
        said = "custom_id is that of an earlier line"
        return LineError("duplicate_custom_id", said, number, "custom_id")
    names.add(line.custom_id)
    return _problem_of_body(line.body, number)


def _problem_of_body(raw: msgspec.Raw, number: int) -> LineError | None:
    try:
        body = _body.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return LineError("invalid_body", f"body: {error}"[:300], number, "body")
    if body.stream:
        return LineError("invalid_body", "body must not ask for a stream", number, "body.stream")
    if body.background:
        said = "body must not ask for an answer in the background, since a batch waits for it"
        return LineError("invalid_body", said, number, "body.background")
    return None
