"""Envelope of a workflow's message: headers (workflow, sender, receiver), and a JSON object.

Both are read as untrusted input, and bounded. `schemas/message.schema.json` is the same definition
for programs in other languages. A later minor version may add headers and fields, so unknown ones
are kept and forwarded.
"""

import re
import secrets
from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any

import msgspec

from kairos.core import (
    FIELD_HEADERS,
    IDENTIFIER_PATTERN,
    NAME_PATTERN,
    TRACEPARENT_PATTERN,
    InvalidRequest,
    Message,
)

ATTEMPT = FIELD_HEADERS["attempt"]  # set by the bus at each delivery, from 1
DEAD_TOPIC = "kairos-dead-topic"
DEAD_GROUP = "kairos-dead-group"
DEAD_REASON = "kairos-dead-reason"

VERSION = r"\A1(\.(0|[1-9][0-9]{0,3}))?\Z"
NUMBER = r"\A(0|[1-9][0-9]{0,17})\Z"
_NUMBERS = (ATTEMPT, FIELD_HEADERS["started_at"], FIELD_HEADERS["deadline"])
OTHERS_LIMIT = 48  # headers beside ours, of which a message gets more on its way
HEADER_NAME_LENGTH = 128
HEADER_LENGTH = 8_192
_VALUE_BYTES = 1 << 20
_NESTING = 64  # objects and lists within each other

Name = Annotated[str, msgspec.Meta(pattern=NAME_PATTERN)]
Value = dict[str, Any]  # a JSON object


class Envelope(msgspec.Struct, frozen=True, kw_only=True, rename=FIELD_HEADERS):
    """Headers of a message: its workflow, receiver, sender, parent request, deadline and trace."""

    version: Annotated[str, msgspec.Meta(pattern=VERSION)] = "1"
    workflow_id: Annotated[str, msgspec.Meta(pattern=IDENTIFIER_PATTERN)]
    app: Name
    agent: Name  # the receiver
    upstream: Name  # the sender
    started_at: Annotated[int, msgspec.Meta(ge=0, lt=10**18)]  # µs since the epoch
    # The request whose answer led to this message: the last of the sender's, or of those before.
    parent: Annotated[str, msgspec.Meta(pattern=IDENTIFIER_PATTERN)] | None = None
    attempt: Annotated[int, msgspec.Meta(ge=1, lt=1_000)] = 1
    # µs since the epoch: nobody waits for the result after it.
    deadline: Annotated[int, msgspec.Meta(ge=0, lt=10**18)] | None = None
    traceparent: Annotated[str, msgspec.Meta(pattern=rf"\A{TRACEPARENT_PATTERN}\Z")]


_OURS = {
    *(each.encode_name for each in msgspec.structs.fields(Envelope)),
    *(DEAD_TOPIC, DEAD_GROUP, DEAD_REASON),
}


def write_message(
    envelope: Envelope, value: Value, others: Mapping[str, str] = MappingProxyType({})
) -> Message:
    """Return a message of the envelope's workflow. `others` are foreign headers to forward."""
    fields = msgspec.to_builtins(envelope).items()
    known = {name: str(field) for name, field in fields if field is not None}
    return Message(
        key=envelope.workflow_id, value=msgspec.json.encode(value), headers={**others, **known}
    )


def forward_message(
    message: Message, envelope: Envelope, *, agent: str, value: Value, parent: str | None
) -> Message:
    """Return the message that the receiver of `message` sends on to `agent`, in the same trace.

    `parent` is the request whose answer led to the new message.
    """
    version, trace, _, flags = envelope.traceparent.split("-")
    onward = msgspec.structs.replace(
        envelope,
        agent=agent,
        upstream=envelope.agent,
        parent=parent,
        traceparent=f"{version}-{trace}-{secrets.token_hex(8)}-{flags}",
    )
    return write_message(onward, value, message.headers)


def read_envelope(message: Message) -> Envelope:
    """Return the envelope in a message's headers.

    Raises:
        InvalidRequest: A header is missing, malformed or too long, or the key is not the workflow.
    """
    headers = dict(message.headers)
    _check_bounds(headers)
    if not re.match(VERSION, version := headers.get(FIELD_HEADERS["version"], "1")):
        raise InvalidRequest(f"the message is of version {version[:20]!r}; known here: 1 and 1.x")
    for name in _NUMBERS:
        if not re.match(NUMBER, headers.get(name, "0")):  # conversion would take "1e3", too
            raise InvalidRequest(f"the message's header {name} must be a whole number in digits")
    try:
        envelope = msgspec.convert(headers, Envelope, strict=False)
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"the message's headers are not a valid envelope: {error}") from error
    if envelope.workflow_id != message.key:
        raise InvalidRequest("the message's key is not its kairos-msg-id")
    return envelope


def _check_bounds(headers: Mapping[str, str]) -> None:
    if len(headers.keys() - _OURS) > OTHERS_LIMIT:
        raise InvalidRequest(
            f"a message has at most {OTHERS_LIMIT} headers in addition to Kairos's own"
        )
    for name, text in headers.items():
        if len(name) > HEADER_NAME_LENGTH:
            raise InvalidRequest(f"a header's name has at most {HEADER_NAME_LENGTH} characters")
        if len(text) > HEADER_LENGTH:
            raise InvalidRequest(f"the header {name} exceeds {HEADER_LENGTH} characters")


def message_bytes(key: str, value: bytes | None, headers: Mapping[str, str]) -> int:
    """Return the size of a message in bytes, as limits count it."""
    named = sum(len(name) + len(text.encode()) for name, text in headers.items())
    return len(key.encode()) + len(value or b"") + named


def read_value(message: Message) -> Value:
    """Return a message's value, a JSON object.

    Raises:
        InvalidRequest: The value is not a JSON object, is too large, or is nested too deeply.
    """
    if len(message.value) > _VALUE_BYTES:
        raise InvalidRequest(f"the message's value exceeds {_VALUE_BYTES} bytes")
    try:
        value = msgspec.json.decode(message.value, type=Value)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequest(f"the message's value is not a JSON object: {error}") from error
    if _is_deep(value):
        raise InvalidRequest(f"the message's value is nested more than {_NESTING} levels deep")
    return value


def _is_deep(value: Value) -> bool:
    level: list[Any] = [value]
    for _ in range(_NESTING):
        within = (each.values() if isinstance(each, dict) else each for each in level)
        level = [each for part in within for each in part if isinstance(each, dict | list)]
        if not level:
            return False
    return True
