"""Output of a batch: a line for each input line, in OpenAI's format and its two files.

Lines are made when a call ends, and files when the batch does.
"""

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, TypeVar

import msgspec

from kairos.batches.batch_input import placed_lines, read_line
from kairos.batches.records import BatchUsage
from kairos.gateway import InnerAnswer

COMPLETED, FAILED = "completed", "failed"
_RESULTS = 256  # read at once
_NOT_CALLED = {
    "expired": ("batch_expired", "the batch's window ended before this line was called"),
    "cancelled": ("batch_cancelled", "the batch was cancelled before this line was called"),
}
_BROKE_OFF = ("upstream_failed", "no complete answer arrived in any attempt")

_encode = msgspec.json.Encoder().encode
_Known = TypeVar("_Known")

Results = Callable[[int, int], list[tuple[int, str, bytes]]]  # after a line, at most N


class LineResponse(msgspec.Struct, frozen=True):
    status_code: int
    request_id: str
    body: msgspec.Raw


class LineFailure(msgspec.Struct, frozen=True):
    code: str
    message: str


class OutputLine(msgspec.Struct, frozen=True):
    id: str
    custom_id: str
    response: LineResponse | None
    error: LineFailure | None


class _Details(msgspec.Struct, frozen=True):
    cached_tokens: int | None = None
    reasoning_tokens: int | None = None


class _Usage(msgspec.Struct, frozen=True):
    """Usage in an answer, in the terms of chat completions, responses and messages."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    total_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None
    prompt_tokens_details: _Details | None = None
    completion_tokens_details: _Details | None = None
    input_tokens_details: _Details | None = None
    output_tokens_details: _Details | None = None

    def counted(self) -> BatchUsage:
        given = self.input_tokens_details or self.prompt_tokens_details or _Details()
        made = self.output_tokens_details or self.completion_tokens_details or _Details()
        # Anthropic's input does not include cached tokens.
        apart = (self.cache_read_input_tokens or 0) + (self.cache_creation_input_tokens or 0)
        return BatchUsage(
            (self.input_tokens or self.prompt_tokens or 0) + apart,
            (given.cached_tokens or 0) + (self.cache_read_input_tokens or 0),
            self.output_tokens or self.completion_tokens or 0,
            made.reasoning_tokens or 0,
        )


class _Answer(msgspec.Struct, frozen=True):
    usage: _Usage | None = None


class _Response(msgspec.Struct, frozen=True):
    body: _Answer | str | None = None  # a text if it is not JSON


class _Result(msgspec.Struct, frozen=True):
    response: _Response | None = None


# Characters allowed in JSON texts that many readers take for line ends: Python's `splitlines`.
_LINE_ENDS = {
    "\u2028".encode(): b"\\u2028",
    "\u2029".encode(): b"\\u2029",
    "\x85".encode(): b"\\u0085",
}


def result_of(batch_id: str, number: int, custom_id: str, answer: InnerAnswer) -> bytes:
    """Return a line of the output, or of the errors, with its end."""
    name = f"batch_req_{batch_id.removeprefix('batch_')}_{number}"
    if answer.status is None:
        made = OutputLine(name, custom_id, None, LineFailure(*_BROKE_OFF))
    else:
        response = LineResponse(answer.status, answer.request_id, _on_one_line(answer.body))
        made = OutputLine(name, custom_id, response, None)
    return _line(made)


def _line(made: OutputLine) -> bytes:
    line = _encode(made)
    for end, escaped in _LINE_ENDS.items():
        line = line.replace(end, escaped)
    return line + b"\n"


def tokens_of(answer: InnerAnswer) -> int | None:
    """Return the tokens of an answer, as the engine counted; None: the answer has no usage."""
    found = _decoded(answer.body, _Answer)
    if found is None or found.usage is None:
        return None
    counted = found.usage.counted()
    return found.usage.total_tokens or counted.input_tokens + counted.output_tokens


def _decoded(data: bytes, kind: type[_Known]) -> _Known | None:
    """Return the known fields of JSON; None if they have other types."""
    try:
        try:
            return msgspec.json.decode(data, type=kind)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return msgspec.convert(json.loads(data), kind)  # takes half of a surrogate pair
    except (msgspec.DecodeError, ValueError, RecursionError):
        return None


def _on_one_line(body: bytes) -> msgspec.Raw:
    """Return a body unchanged except for line breaks; one that is not JSON as a text."""
    try:
        msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        try:  # half of a surrogate pair, which msgspec does not take
            return msgspec.Raw(json.dumps(json.loads(body, parse_constant=_refuse)).encode())
        except (ValueError, RecursionError):
            return msgspec.Raw(_encode(body.decode("utf-8", "replace")))
    return msgspec.Raw(body.replace(b"\n", b" ").replace(b"\r", b" "))


def _refuse(constant: str) -> None:
    raise ValueError(constant)


class Written(msgspec.Struct, frozen=True):
    """Sizes in bytes; 0: the file does not exist. `usage`: None if no answer has any."""

    output: int
    errors: int
    usage: BatchUsage | None = None


def write_outputs(
    batch_id: str, results: Results, ends_as: str, input_path: Path, output: Path, errors: Path
) -> Written:
    """Write both files to disk, in the order of the input.

    Raises:
        OSError: the input cannot be read, or the files cannot be written.
    """
    kept, usage = _in_order(results), None
    with input_path.open("rb") as given, _new(output) as answered, _new(errors) as failed:
        result = next(kept, None)
        for place, data in placed_lines(given):
            if result is not None and result[0] == place.number:
                _, outcome, value = result
                (answered if outcome == COMPLETED else failed).write(value)
                usage = _with_usage(usage, value)
                result = next(kept, None)
            elif ends_as in _NOT_CALLED:
                failure = LineFailure(*_NOT_CALLED[ends_as])
                name = f"batch_req_{batch_id.removeprefix('batch_')}_{place.number}"
                line = OutputLine(name, read_line(data).custom_id, None, failure)
                failed.write(_line(line))
        sizes = Written(_finished(answered), _finished(failed), usage)
    for path, size in ((output, sizes.output), (errors, sizes.errors)):
        if not size:
            path.unlink()
    return sizes


def _with_usage(so_far: BatchUsage | None, line: bytes) -> BatchUsage | None:
    """Return the sum with the usage of one more line."""
    found = _decoded(line, _Result)
    answer = None if found is None or found.response is None else found.response.body
    if not isinstance(answer, _Answer) or answer.usage is None:
        return so_far
    added, before = answer.usage.counted(), so_far or BatchUsage()
    return BatchUsage(
        before.input_tokens + added.input_tokens,
        before.cached_tokens + added.cached_tokens,
        before.output_tokens + added.output_tokens,
        before.reasoning_tokens + added.reasoning_tokens,
    )


def _in_order(results: Results) -> Iterator[tuple[int, str, bytes]]:
    after = 0
    while page := results(after, _RESULTS):
        yield from page
        after = page[-1][0]


def _new(path: Path) -> BinaryIO:
    return open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb")  # noqa: PTH123


def _finished(file: BinaryIO) -> int:
    file.flush()
    os.fsync(file.fileno())
    return file.tell()
