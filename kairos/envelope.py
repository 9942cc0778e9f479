"""What travels with each message of a workflow: headers that say whose it is, for whom and from
whom, and a JSON object as the value. All of it is read as untrusted input.
"""

import secrets
from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any

import msgspec

from kairos.errors import InvalidRequest
from kairos.model import IDENTIFIER, TRACEPARENT
from kairos.ports import Message

ATTEMPT = "kairos-attempt"  # set by the bus at each delivery, from 1
DEAD_TOPIC = "kairos-dead-topic"
DEAD_GROUP = "kairos-dead-group"
DEAD_REASON = "kairos-dead-reason"

NAME = r"\A[A-Za-z0-9_][A-Za-z0-9_-]{0,63}\Z"  # becomes part of a topic's name, so no dots
_HEADERS_LIMIT = 64  # headers of a message, those of others included
_VALUE_BYTES = 1 << 20
_HEADERS = {
    "version": "kairos-version",
    "workflow_id": "kairos-msg-id",
    "app": "kairos-app",
    "agent": "kairos-agent",
    "upstream": "kairos-upstream",
    "started_at": "kairos-started-at",
    "parent": "kairos-parent",
    "attempt": ATTEMPT,
    "deadline": "kairos-deadline",
    "traceparent": "traceparent",
}

Name = Annotated[str, msgspec.Meta(pattern=NAME)]
Value = dict[str, Any]  # a JSON object


class Envelope(msgspec.Struct, frozen=True, kw_only=True, rename=_HEADERS):
    """What a message's headers say: whose it is, for whom and from whom."""

    version: Annotated[int, msgspec.Meta(ge=1, le=1)] = 1
    workflow_id: Annotated[str, msgspec.Meta(pattern=IDENTIFIER)]
    app: Name
    agent: Name  # the receiver
    upstream: Name  # the sender
    started_at: Annotated[int, msgspec.Meta(ge=0, lt=10**18)]  # µs since the epoch
    # The request whose answer led to this message: the last of the sender's, or of those before.
    parent: Annotated[str, msgspec.Meta(pattern=IDENTIFIER)] | None = None
    attempt: Annotated[int, msgspec.Meta(ge=1, lt=1_000)] = 1
    # µs since the epoch: nobody waits for the result after it.
    deadline: Annotated[int, msgspec.Meta(ge=0, lt=10**18)] | None = None
    traceparent: Annotated[str, msgspec.Meta(pattern=rf"\A{TRACEPARENT}\Z")]


def write_message(
    envelope: Envelope, value: Value, others: Mapping[str, str] = MappingProxyType({})
) -> Message:
    """A message of the envelope's workflow; headers of others go along."""
    fields = msgspec.to_builtins(envelope).items()
    known = {name: str(field) for name, field in fields if field is not None}
    return Message(
        key=envelope.workflow_id, value=msgspec.json.encode(value), headers={**others, **known}
    )


def forward(
    message: Message, envelope: Envelope, *, agent: str, value: Value, parent: str | None
) -> Message:
    """What the receiver of `message` sends on to `agent`, in the same trace.

    `parent` is the request that led to it.
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
    """Raises InvalidRequest: the headers do not say what an envelope must."""
    if len(message.headers) > _HEADERS_LIMIT:
        raise InvalidRequest(f"a message has at most {_HEADERS_LIMIT} headers")
    try:
        envelope = msgspec.convert(dict(message.headers), Envelope, strict=False)
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"the message's headers are no envelope: {error}") from error
    if envelope.workflow_id != message.key:
        raise InvalidRequest("the message's key is not its kairos-msg-id")
    return envelope


def read_value(message: Message) -> Value:
    """Raises InvalidRequest: the value is no JSON object."""
    if len(message.value) > _VALUE_BYTES:
        raise InvalidRequest(f"the message's value is over {_VALUE_BYTES} bytes")
    try:
        return msgspec.json.decode(message.value, type=Value)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequest(f"the message's value is no JSON object: {error}") from error
