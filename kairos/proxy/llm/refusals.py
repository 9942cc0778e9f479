"""What a server said went wrong, as an error that tells whether another attempt makes sense."""

import msgspec

from kairos.core.errors import (
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
# A stream has begun with 200: of Kairos's own errors in it the code tells the status.
_STATUS = {
    each.code: each.status
    for each in (
        *(QueueFull, TooMuchHeld, DeadlinePassed, NoInstance, WaitedTooLong, RequestInFlight),
        *(Unavailable, UpstreamUnreachable),
    )
}
INSUFFICIENT_QUOTA = "insufficient_quota"  # OpenAI's 429 that no waiting ends
_BUDGET, _SPENT = "budget_", 403


class ErrorTold(msgspec.Struct):
    """As OpenAI's API has it."""

    message: str
    type: object = None
    code: object = None  # some engines tell a number, the status


class _ErrorBody(msgspec.Struct):
    error: ErrorTold


def read_error(body: bytes) -> ErrorTold:
    """Of a body that may be anything."""
    try:
        return msgspec.json.decode(body, type=_ErrorBody).error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ErrorTold(body[:_MESSAGE].decode(errors="replace"))


def refusal(status: int, told: ErrorTold, prefix: str = "") -> KairosError:
    """Unavailable: trying again makes sense; InvalidRequest: it does not; UpstreamFailed: else."""
    kind: type[KairosError] = UpstreamFailed
    if status in (429, 503) and told.code != INSUFFICIENT_QUOTA:
        kind = Unavailable
    elif 400 <= status < 500:
        kind = InvalidRequest
    failure = kind(prefix + (told.message[:_MESSAGE] or f"status {status}"))
    failure.status = max(400, status)
    failure.code = told.code if isinstance(told.code, str) else kind.code
    return failure


def broken_off(event: bytes) -> KairosError:
    """What an event of a stream says that ended it."""
    told = read_error(event)
    return refusal(_status(told), told, "the answer broke off: ")


def _status(told: ErrorTold) -> int:
    code = told.code
    if isinstance(code, int) and 400 <= code < 600:
        return code
    if isinstance(code, str) and code.startswith(_BUDGET):
        return _SPENT
    if isinstance(code, str) and code in _STATUS:
        return _STATUS[code]
    return 400 if told.type == "invalid_request_error" else UpstreamFailed.status
