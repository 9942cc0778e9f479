"""Identity declared by a call's `X-Kairos-*` headers."""

from kairos.core import PARENTS_LIMIT, RAW_HEADERS, Header, InvalidRequest
from kairos.request.identity.identity import Field, Headers, Identity, valid_identifier

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
_NAMES = frozenset([*_FIELDS.values(), _STARTED_AT, _PARENT_ID, _ATTEMPT])
ATTEMPT_LIMIT = 999


def declared_identity(headers: Headers) -> Identity:
    """Return the declared identity. Raises InvalidRequest: A header is malformed."""
    if _NAMES.isdisjoint(headers):
        return Identity()
    identity = Identity()
    if _STARTED_AT in headers:
        identity.started_at = instant(headers, _STARTED_AT)
    if _PARENT_ID in headers:
        identity.parent_ids = _parents(_PARENT_ID, headers[_PARENT_ID])
    if _ATTEMPT in headers:
        identity.attempt = _attempt(_ATTEMPT, headers[_ATTEMPT])
    for field, name in _FIELDS.items():
        value = headers.get(name)
        if value is not None:
            text = valid_identifier(value)
            if text is None:
                raise _no_identifier(name)
            setattr(identity, field, text)
            identity.sources[field] = "declared"
    return identity


def _identified(name: bytes, value: bytes) -> str:
    text = valid_identifier(value)
    if text is None:
        raise _no_identifier(name)
    return text


def _no_identifier(name: bytes) -> InvalidRequest:
    return InvalidRequest(
        f"header {name.decode()} is no valid identifier: it takes 1 to 128 letters, digits and "
        "_ . : @ / + = -, of which the first is a letter, a digit or _"
    )


def instant(headers: Headers, name: bytes) -> int | None:
    """Return an instant in µs since the epoch, or None.

    Raises:
        InvalidRequest: The header is malformed.
    """
    value = headers.get(name)
    if value is None:
        return None
    if not (value.isdigit() and len(value) <= 18):
        raise InvalidRequest(f"header {name.decode()} must be whole microseconds since the epoch")
    return int(value)


def _parents(name: bytes, value: bytes) -> tuple[str, ...]:
    ids = value.split(b",", PARENTS_LIMIT)
    if len(ids) > PARENTS_LIMIT:
        raise InvalidRequest(f"header {name.decode()} names more than {PARENTS_LIMIT} requests")
    return tuple(dict.fromkeys(_identified(name, each.strip(b" \t")) for each in ids))


def _attempt(name: bytes, value: bytes) -> int:
    if not (value.isdigit() and len(value) <= 18 and 1 <= int(value) <= ATTEMPT_LIMIT):
        raise InvalidRequest(f"header {name.decode()} must be a number from 1 to {ATTEMPT_LIMIT}")
    return int(value)
