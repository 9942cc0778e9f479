"""Flow of an input file of OpenAI's Batch API: one LLM call, with a row for each line.

The file itself is the table, so nothing is copied. Text shared by all lines is part of the flow, so
that it is known as a common prefix; the rest is read from the rows.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from kairos.batches import check_input, placed_lines, read_line
from kairos.core import InvalidFile
from kairos.settings import MAX_BATCH_BYTES, MAX_BATCH_LINES
from kairos.workflows.compile.check import MOST_VALUE_BYTES
from kairos.workflows.compile.operators import Role
from kairos.workflows.declare.declaring import Flow

NAME, LINE_NAME = "openai_batch", "custom_id"  # of such a flow, and of the column of rows' names
_ENDPOINT = "/v1/chat/completions"
_TEMPERATURE = 1.0  # OpenAI's default
_SENT = ("model", "max_tokens", "temperature", "top_p", "seed", "stop")
_AS_A_BATCH = "or send the file to /v1/batches, where bodies go to the engine as they stand"


class _Message(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    role: Role
    content: str


class _Schema(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    schema: Mapping[str, Any]
    name: str = ""
    description: str | None = None
    strict: bool | None = None


class _TextFormat(msgspec.Struct, frozen=True, tag_field="type", tag="text"):
    pass


class _JsonFormat(msgspec.Struct, frozen=True, tag_field="type", tag="json_schema"):
    json_schema: _Schema


class _ChatBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Fields of a call that a flow can express."""

    model: str
    messages: list[_Message]
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    response_format: _TextFormat | _JsonFormat | None = None
    n: Literal[1] | None = None
    stream: Literal[False] | None = None

    def settings(self) -> dict[str, Any]:
        """Return the settings that must be equal in all lines."""
        wanted, stop, heat = self.response_format, self.stop, self.temperature
        return {
            "model": self.model,
            "roles of messages": [each.role for each in self.messages],
            "max_tokens": self.max_completion_tokens or self.max_tokens,
            "temperature": _TEMPERATURE if heat is None else heat,
            "top_p": self.top_p,
            "seed": self.seed,
            "stop": [stop] if isinstance(stop, str) else stop or [],
            "response_format": wanted.json_schema if isinstance(wanted, _JsonFormat) else None,
        }


_body = msgspec.json.Decoder(_ChatBody)


def from_openai_batch(file: Path | str) -> Flow:
    """Return a flow to run over the same file: `run_flow(from_openai_batch(file), file, out, ...)`.

    An output row is a line of a batch's output: `custom_id`, and `response` with the answer in its
    body. A run stores texts only, so there is no `usage`, and `finish_reason` is null.

    Raises:
        InvalidFile: a line is invalid for `/v1/batches`, cannot be expressed by a flow, or has
            other settings than the first. The error has the line's number, and what to do.
    """
    path = Path(file)
    try:
        _check(path)
        first, alike = _first_and_alike(path)
    except OSError as error:
        raise InvalidFile(path, f"cannot be read: {error.strerror}") from error
    return _flow(first, alike)


def _check(path: Path) -> None:
    if (size := path.stat().st_size) > MAX_BATCH_BYTES:
        said = f"it has {size} bytes, and a batch {MAX_BATCH_BYTES} at most: split it"
        raise InvalidFile(path, said)
    for error in check_input(path, _ENDPOINT, MAX_BATCH_LINES).errors:
        hint = ": split the file" if error.code == "too_many_lines" else ""
        raise InvalidFile(path, error.message + hint, line=error.line)


def _first_and_alike(path: Path) -> tuple[_ChatBody, list[bool]]:
    """Return the body of the first line, and which of its messages all lines share."""
    first: _ChatBody | None = None
    with path.open("rb") as file:
        for place, data in placed_lines(file):
            body = _read(path, place.number, data)
            if first is None:
                first, number, settings = body, place.number, body.settings()
                alike = [True] * len(body.messages)
            differs = [key for key, value in body.settings().items() if value != settings[key]]
            if differs:
                raise InvalidFile(
                    path,
                    f"it differs from line {number} in {', '.join(differs)}, and a flow makes "
                    f"calls of one kind: give each kind a file of its own, {_AS_A_BATCH}",
                    line=place.number,
                )
            pairs = zip(alike, first.messages, body.messages, strict=True)
            alike = [so_far and one == other for so_far, one, other in pairs]
    assert first is not None, "checked to have lines"
    return first, alike


def _read(path: Path, number: int, data: bytes) -> _ChatBody:
    try:
        body = _body.decode(read_line(data).body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        said = f"a flow cannot say this: body: {error}"[:300]
        raise InvalidFile(path, f"{said}; leave it out, {_AS_A_BATCH}", line=number) from error
    if not body.messages:
        raise InvalidFile(path, "messages is empty: say what is asked", line=number)
    return body


def _flow(first: _ChatBody, alike: Sequence[bool]) -> Flow:
    known = first.settings()
    made = Flow(NAME)
    row = made.input("row")
    texts = {
        f"message_{at}": message.content
        if same and len(message.content.encode()) < MOST_VALUE_BYTES // 2
        else row["body"]["messages"][at]["content"]
        for at, (message, same) in enumerate(zip(first.messages, alike, strict=True))
    }
    answer = made.llm(
        "answer",
        [(each.role, f"{{{{ message_{at} }}}}") for at, each in enumerate(first.messages)],
        schema=known["response_format"] and known["response_format"].schema,
        **{name: known[name] for name in _SENT},
        on_cut="keep",
        inputs=texts,
    )
    made.output("id", made.format("id", "batch_req_{{ row.custom_id }}", row=row))
    made.output("custom_id", row["custom_id"])
    given = made.call(
        "response",
        openai_response,
        purity="pure",
        version="1",
        custom_id=row["custom_id"],
        model=first.model,
        answer=answer,
    )
    made.output("response", given)
    made.output("error", None)
    return made


def openai_response(custom_id: str, model: str, answer: object) -> dict[str, object]:
    """Return the response in a line of a batch's output. Unknown values are null, 0 or empty."""
    text = answer if isinstance(answer, str) else msgspec.json.encode(answer).decode()
    message = {"role": "assistant", "content": text}
    body = {
        "id": f"chatcmpl-{custom_id}",
        "object": "chat.completion",
        "created": 0,
        "model": model,
        "choices": [{"index": 0, "message": message, "finish_reason": None}],
    }
    return {"status_code": 200, "request_id": "", "body": body}
