"""Who makes a call, and what led to it, read from the request's headers.

Highest first, field by field: `X-Kairos-*`; W3C `baggage` (`kairos.*`, then the GenAI conventions'
`gen_ai.agent.name` and `gen_ai.conversation.id`); the trace id of `traceparent`, for the workflow.
Parents and attempt are in `X-Kairos-*` alone.
"""

import re
from collections.abc import Mapping
from urllib.parse import unquote

import msgspec

from kairos.errors import InvalidRequest
from kairos.model import IDENTIFIER, PARENTS_LIMIT, TRACEPARENT

Headers = Mapping[bytes, bytes]

_IDENTIFIER = re.compile(IDENTIFIER)
_TRACEPARENT = re.compile(TRACEPARENT)
_ATTEMPT_LIMIT = 999
_BAGGAGE_LIMIT = 8192  # bytes, the least that the W3C asks a platform to carry
_BAGGAGE_FIELDS = {  # highest first
    "kairos.workflow_id": "workflow_id",
    "kairos.app": "app",
    "kairos.agent": "agent",
    "kairos.upstream": "upstream",
    "gen_ai.agent.name": "agent",
    "gen_ai.conversation.id": "workflow_id",
}


class Identity(msgspec.Struct):
    workflow_id: str | None = None
    app: str | None = None
    agent: str | None = None
    upstream: str | None = None
    started_at: int | None = None  # µs since the epoch, when the user's task began
    parent_ids: tuple[str, ...] = ()  # the requests whose answers led to this call
    attempt: int = 1


def read_identity(headers: Headers) -> Identity:
    """What the request says of itself; None where it says nothing.

    Raises:
        InvalidRequest: an `X-Kairos-*` header is not what it must be. What comes along in tracing
            headers was not meant for us alone, so there a value that is no identifier is ignored.
    """
    identity = Identity(
        workflow_id=_declared(headers, b"x-kairos-workflow-id"),
        app=_declared(headers, b"x-kairos-app"),
        agent=_declared(headers, b"x-kairos-agent"),
        upstream=_declared(headers, b"x-kairos-upstream"),
        started_at=_declared_instant(headers, b"x-kairos-started-at"),
        parent_ids=_declared_parents(headers, b"x-kairos-parent-id"),
        attempt=_declared_attempt(headers, b"x-kairos-attempt"),
    )
    baggage = headers.get(b"baggage")
    if baggage is not None:
        _add_baggage(identity, baggage)
    if identity.workflow_id is None and b"traceparent" in headers:
        trace = _TRACEPARENT.match(headers[b"traceparent"].decode("latin-1"))
        identity.workflow_id = trace and trace[1]
    return identity


def identifier(value: bytes | None) -> str | None:
    """The value as text if it is a valid identifier, else None."""
    if value is None or not _IDENTIFIER.match(text := value.decode("latin-1")):
        return None
    return text


def _declared(headers: Headers, name: bytes) -> str | None:
    value = headers.get(name)
    return None if value is None else _identified(name, value)


def _identified(name: bytes, value: bytes) -> str:
    text = identifier(value)
    if text is None:
        raise InvalidRequest(
            f"header {name.decode()} is no valid identifier: it takes 1 to 128 letters, digits and "
            "_ . : @ / + = -, of which the first is a letter, a digit or _"
        )
    return text


def _declared_instant(headers: Headers, name: bytes) -> int | None:
    value = headers.get(name)
    if value is None:
        return None
    if not (value.isdigit() and len(value) <= 18):
        raise InvalidRequest(f"header {name.decode()} must be whole microseconds since the epoch")
    return int(value)


def _declared_parents(headers: Headers, name: bytes) -> tuple[str, ...]:
    value = headers.get(name)
    if value is None:
        return ()
    ids = value.split(b",", PARENTS_LIMIT)
    if len(ids) > PARENTS_LIMIT:
        raise InvalidRequest(f"header {name.decode()} names over {PARENTS_LIMIT} requests")
    return tuple(dict.fromkeys(_identified(name, each.strip(b" \t")) for each in ids))


def _declared_attempt(headers: Headers, name: bytes) -> int:
    value = headers.get(name, b"1")
    if not (value.isdigit() and len(value) <= 18 and 1 <= int(value) <= _ATTEMPT_LIMIT):
        raise InvalidRequest(f"header {name.decode()} must be a number from 1 to {_ATTEMPT_LIMIT}")
    return int(value)


def _add_baggage(identity: Identity, baggage: bytes) -> None:
    if len(baggage) > _BAGGAGE_LIMIT:
        baggage = baggage[:_BAGGAGE_LIMIT].rpartition(b",")[0]  # a member cut short is another name
    values: dict[str, str] = {}
    for member in baggage.decode("latin-1").split(","):
        name, _, value = member.partition(";")[0].partition("=")
        text = unquote(value.strip())
        if _IDENTIFIER.match(text):
            values.setdefault(name.strip(), text)
    for name, field in _BAGGAGE_FIELDS.items():
        if getattr(identity, field) is None:
            setattr(identity, field, values.get(name))
