"""Deadline of a call, from its client's headers."""

import re

from kairos.core import RAW_HEADERS, SECOND, Header, InvalidRequest
from kairos.request.identity.declared import instant
from kairos.request.identity.identity import Headers

MAX_MS = 86_400_000
_DEADLINE, _DEADLINE_MS = RAW_HEADERS[Header.DEADLINE], RAW_HEADERS[Header.DEADLINE_MS]
# How long OpenAI's and Anthropic's SDKs wait for bytes, in seconds: where an answer comes whole,
# for all of it. The first is Python's, the second JavaScript's.
_READ_TIMEOUTS = b"x-stainless-read-timeout", b"x-stainless-timeout"
_NAMES = frozenset([_DEADLINE, _DEADLINE_MS, *_READ_TIMEOUTS])
_SECONDS = re.compile(rb"[0-9]{1,6}(\.[0-9]{1,9})?")


def deadline_of(headers: Headers, now: int, *, streams: bool) -> int | None:
    """Return the earliest deadline in the headers, in µs since the epoch; None: without limit.

    Raises:
        InvalidRequest: A header of Kairos is malformed. An SDK's own header is ignored if it is.
    """
    if _NAMES.isdisjoint(headers):
        return None
    named = [instant(headers, _DEADLINE), _in_ms(headers, now)]
    if not streams and (read_timeout_s := _read_timeout_s(headers)) is not None:
        named.append(now + int(read_timeout_s * SECOND))
    return min((each for each in named if each is not None), default=None)


def patience_of(headers: Headers, now: int) -> float | None:
    """Return the client's timeout in seconds, for an answer or its next part; None: unknown.

    `headers` have passed `deadline_of`.
    """
    if _NAMES.isdisjoint(headers):
        return None
    named = [
        (at - now) / SECOND for at in (instant(headers, _DEADLINE), _in_ms(headers, now)) if at
    ]
    if (read_timeout_s := _read_timeout_s(headers)) is not None:
        named.append(read_timeout_s)
    return max(named, default=None)


def _read_timeout_s(headers: Headers) -> float | None:
    """Return the read timeout that an SDK sends, or None."""
    for name in _READ_TIMEOUTS:
        if _SECONDS.fullmatch(said := headers.get(name, b"")):
            return float(said)
    return None


def _in_ms(headers: Headers, now: int) -> int | None:
    value = headers.get(_DEADLINE_MS)
    if value is None:
        return None
    if not (value.isdigit() and len(value) <= 9 and 0 < int(value) <= MAX_MS):
        raise InvalidRequest(
            f"header {Header.DEADLINE_MS.lower()} must be whole milliseconds from now, "
            f"1 to {MAX_MS}"
        )
    return now + int(value) * 1_000
