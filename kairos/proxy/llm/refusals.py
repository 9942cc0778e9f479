"""Errors for a server's refusals, which say whether a retry makes sense."""

import msgspec

from kairos.core import (
    DeadlinePassed,
    InvalidRequest,
    KairosError,
    NoInstance,
    QueueFull,
    RequestInFlight,
    TooMuchHeld,
    Unavailable,
    UpstreamFailed,
    UpstreamUnreachable,
    WaitedTooLong,
)

_MESSAGE = 500  # characters
# A stream has begun with 200, so the status of an error in it follows from Kairos's error code.
_STATUS = {
    each.code: each.status
    for each in (
        *(QueueFull, TooMuchHeld, DeadlinePassed, NoInstance, WaitedTooLong, RequestInFlight),
        *(Unavailable, UpstreamUnreachable),
    )
}
_INSUFFICIENT_QUOTA = "insufficient_quota"  # OpenAI's 429 that no waiting ends
_BUDGET, _SPENT = "budget_", 403


class ErrorTold(msgspec.Struct):
    """Error in the format of OpenAI's API."""

    message: str
    type: object = None
    code: object = None  # some engines tell a number, the status


class _ErrorBody(msgspec.Struct):
    error: ErrorTold


def read_error(body: bytes) -> ErrorTold:
    """Parse an error from any body."""
    try:
        return msgspec.json.decode(body, type=_ErrorBody).error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ErrorTold(body[:_MESSAGE].decode(errors="replace"))


def is_for_now(status: int, told: ErrorTold) -> bool:
    """Return whether a server that refused may accept the same call later."""
    return status in (429, 503) and told.code != _INSUFFICIENT_QUOTA


def refusal_error(status: int, told: ErrorTold, prefix: str = "") -> KairosError:
    """Return Unavailable if a retry makes sense, InvalidRequest if not, else UpstreamFailed."""
    kind: type[KairosError] = UpstreamFailed
    if is_for_now(status, told):
        kind = Unavailable
    elif 400 <= status < 500:
        kind = InvalidRequest
    failure = kind(prefix + (told.message[:_MESSAGE] or f"status {status}"))
    failure.status = max(400, status)
    failure.code = told.code if isinstance(told.code, str) else kind.code
    return failure


def broken_off(event: bytes) -> KairosError:
    """Return the error for an event that ended a stream."""
    told = read_error(event)
    return refusal_error(_status(told), told, "the answer broke off: ")


def _status(told: ErrorTold) -> int:
    code = told.code
    if isinstance(code, int) and 400 <= code < 600:
        return code
    if isinstance(code, str) and code.startswith(_BUDGET):
        return _SPENT
    if isinstance(code, str) and code in _STATUS:
        return _STATUS[code]
    return 400 if told.type == "invalid_request_error" else UpstreamFailed.status
