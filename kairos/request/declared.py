"""A call's `X-Kairos-*` headers, and what SDKs say of time: its identity, deadline and budget."""

import re

from kairos.core import PARENTS_LIMIT, RAW_HEADERS, SECOND, Budget, Header, InvalidRequest
from kairos.request.identity.identity import Field, Headers, Identity, valid_identifier

ATTEMPT_LIMIT = 999
MAX_MS = 86_400_000  # of a deadline
MAX_BUDGET = 10**12

_FIELDS: dict[Field, bytes] = {
    "workflow_id": RAW_HEADERS[Header.WORKFLOW_ID],
    "app": RAW_HEADERS[Header.APP],
    "agent": RAW_HEADERS[Header.AGENT],
    "upstream": RAW_HEADERS[Header.UPSTREAM],
}
_STARTED_AT, _PARENT_ID, _ATTEMPT = (
    RAW_HEADERS[Header.STARTED_AT],
    RAW_HEADERS[Header.PARENT_ID],
    RAW_HEADERS[Header.ATTEMPT],
)
_OF_IDENTITY = frozenset([*_FIELDS.values(), _STARTED_AT, _PARENT_ID, _ATTEMPT])
_DEADLINE, _DEADLINE_MS = RAW_HEADERS[Header.DEADLINE], RAW_HEADERS[Header.DEADLINE_MS]
# How long OpenAI's and Anthropic's SDKs wait for bytes, in seconds: where an answer comes whole,
# for all of it. The first is Python's, the second JavaScript's.
_READ_TIMEOUTS = b"x-stainless-read-timeout", b"x-stainless-timeout"
_OF_TIME = frozenset([_DEADLINE, _DEADLINE_MS, *_READ_TIMEOUTS])
_SECONDS = re.compile(rb"[0-9]{1,6}(\.[0-9]{1,9})?")
_CALLS, _TOKENS, _MS = (
    RAW_HEADERS[Header.BUDGET_CALLS],
    RAW_HEADERS[Header.BUDGET_TOKENS],
    RAW_HEADERS[Header.BUDGET_MS],
)


def declared_identity(headers: Headers) -> Identity:
    """Return the declared identity. Raises InvalidRequest: A header is malformed."""
    identity = Identity()
    if _OF_IDENTITY.isdisjoint(headers):
        return identity
    if _STARTED_AT in headers:
        identity.started_at = _instant(headers, _STARTED_AT)
    if _PARENT_ID in headers:
        identity.parent_ids = _parents(headers[_PARENT_ID])
    identity.attempt = _number(headers, _ATTEMPT, ATTEMPT_LIMIT) or 1
    for field, name in _FIELDS.items():
        value = headers.get(name)
        if value is not None:
            setattr(identity, field, _identified(name, value))
            identity.sources[field] = "declared"
    return identity


def deadline_of(headers: Headers, now: int, *, streams: bool) -> int | None:
    """Return the earliest deadline in the headers, in µs since the epoch; None: without limit.

    Raises:
        InvalidRequest: A header of Kairos is malformed. An SDK's own header is ignored if it is.
    """
    if _OF_TIME.isdisjoint(headers):
        return None
    named = [_instant(headers, _DEADLINE), _in_ms(headers, now)]
    if not streams and (read_timeout_s := _read_timeout_s(headers)) is not None:
        named.append(now + int(read_timeout_s * SECOND))
    return min((each for each in named if each is not None), default=None)


def patience_of(headers: Headers, now: int) -> float | None:
    """Return the client's timeout in seconds, for an answer or its next part; None: unknown.

    `headers` have passed `deadline_of`.
    """
    if _OF_TIME.isdisjoint(headers):
        return None
    named = [
        (at - now) / SECOND for at in (_instant(headers, _DEADLINE), _in_ms(headers, now)) if at
    ]
    if (read_timeout_s := _read_timeout_s(headers)) is not None:
        named.append(read_timeout_s)
    return max(named, default=None)


def budget_of(headers: Headers) -> Budget | None:
    """Return the budget of the call's workflow. Raises InvalidRequest: A header is malformed."""
    if _CALLS not in headers and _TOKENS not in headers and _MS not in headers:
        return None
    calls, tokens, wall_ms = (_number(headers, each, MAX_BUDGET) for each in (_CALLS, _TOKENS, _MS))
    return Budget(calls, tokens, None if wall_ms is None else wall_ms * 1_000)


def _identified(name: bytes, value: bytes) -> str:
    text = valid_identifier(value)
    if text is None:
        raise InvalidRequest(
            f"header {name.decode()} is not a valid identifier: it takes 1 to 128 letters, digits "
            "and _ . : @ / + = -, and begins with a letter, a digit or _"
        )
    return text


def _parents(value: bytes) -> tuple[str, ...]:
    ids = value.split(b",", PARENTS_LIMIT)
    if len(ids) > PARENTS_LIMIT:
        name = _PARENT_ID.decode()
        raise InvalidRequest(f"header {name} names more than {PARENTS_LIMIT} requests")
    return tuple(dict.fromkeys(_identified(_PARENT_ID, each.strip(b" \t")) for each in ids))


def _read_timeout_s(headers: Headers) -> float | None:
    for name in _READ_TIMEOUTS:
        if _SECONDS.fullmatch(said := headers.get(name, b"")):
            return float(said)
    return None


def _in_ms(headers: Headers, now: int) -> int | None:
    must_be = "whole milliseconds from now, 1 to"
    ms = _number(headers, _DEADLINE_MS, MAX_MS, must_be, digits=9)
    return None if ms is None else now + ms * 1_000


def _number(
    headers: Headers, name: bytes, most: int, must_be: str = "a number from 1 to", digits: int = 18
) -> int | None:
    value = headers.get(name)
    if value is None:
        return None
    if not (value.isdigit() and len(value) <= digits and 0 < int(value) <= most):
        raise InvalidRequest(f"header {name.decode()} must be {must_be} {most}")
    return int(value)


def _instant(headers: Headers, name: bytes) -> int | None:
    """Return an instant in µs since the epoch. Raises InvalidRequest: The header is malformed."""
    value = headers.get(name)
    if value is None:
        return None
    if not (value.isdigit() and len(value) <= 18):
        raise InvalidRequest(f"header {name.decode()} must be whole microseconds since the epoch")
    return int(value)
