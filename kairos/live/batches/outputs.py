"""What a batch gives: a line for each of its input's, in the format and the two files that OpenAI
has. Lines are made when a call ends, and files when the batch does."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

import msgspec

from kairos.batch_input import placed_lines, read_line
from kairos.live.frontend.inner_call import InnerAnswer

COMPLETED, FAILED = "completed", "failed"
_RESULTS = 256  # that are read at once
_NOT_CALLED = {
    "expired": ("batch_expired", "the batch's window was over before this line was called"),
    "cancelled": ("batch_cancelled", "the batch was cancelled before this line was called"),
}
_BROKE_OFF = ("upstream_failed", "no whole answer came, as often as it was tried")

_encode = msgspec.json.Encoder().encode

Results = Callable[[int, int], list[tuple[int, str, bytes]]]  # after a line, so many


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


class _Usage(msgspec.Struct, frozen=True):
    total_tokens: int = 0


class _Answer(msgspec.Struct, frozen=True):
    usage: _Usage | None = None


_answer = msgspec.json.Decoder(_Answer)


def result_of(batch_id: str, number: int, custom_id: str, answer: InnerAnswer) -> bytes:
    """A line of the output, or of the errors, with its end."""
    name = f"batch_req_{batch_id.removeprefix('batch_')}_{number}"
    if answer.status is None:
        made = OutputLine(name, custom_id, None, LineFailure(*_BROKE_OFF))
    else:
        response = LineResponse(answer.status, answer.request_id, _on_one_line(answer.body))
        made = OutputLine(name, custom_id, response, None)
    return _encode(made) + b"\n"


def tokens_of(answer: InnerAnswer) -> int | None:
    """That it took, as the engine counted; None: it does not say."""
    try:
        usage = _answer.decode(answer.body).usage
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return None if usage is None else usage.total_tokens


def _on_one_line(body: bytes) -> msgspec.Raw:
    try:
        value = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return msgspec.Raw(_encode(body.decode("utf-8", "replace")))
    if b"\n" in body or b"\r" in body:
        return msgspec.Raw(_encode(value))
    return msgspec.Raw(body)


class Written(msgspec.Struct, frozen=True):
    """Bytes of each; 0: there is no such file."""

    output: int
    errors: int


def write_outputs(
    batch_id: str, results: Results, ends_as: str, input_path: Path, output: Path, errors: Path
) -> Written:
    """Both files, on the disk, in the order of the input.

    Raises:
        OSError: the input cannot be read, or they cannot be written.
    """
    kept = _in_order(results)
    with input_path.open("rb") as given, _new(output) as answered, _new(errors) as failed:
        result = next(kept, None)
        for place, data in placed_lines(given):
            if result is not None and result[0] == place.number:
                _, outcome, value = result
                (answered if outcome == COMPLETED else failed).write(value)
                result = next(kept, None)
            elif ends_as in _NOT_CALLED:
                failure = LineFailure(*_NOT_CALLED[ends_as])
                name = f"batch_req_{batch_id.removeprefix('batch_')}_{place.number}"
                line = OutputLine(name, read_line(data).custom_id, None, failure)
                failed.write(_encode(line) + b"\n")
        sizes = Written(_finished(answered), _finished(failed))
    for path, size in ((output, sizes.output), (errors, sizes.errors)):
        if not size:
            path.unlink()
    return sizes


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
