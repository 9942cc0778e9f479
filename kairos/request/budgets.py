"""Budget headers: the maximum that the call's workflow may use."""

from kairos.core import RAW_HEADERS, Budget, Header, InvalidRequest
from kairos.request.identity.identity import Headers

CALLS, TOKENS, MS = (
    RAW_HEADERS[Header.BUDGET_CALLS],
    RAW_HEADERS[Header.BUDGET_TOKENS],
    RAW_HEADERS[Header.BUDGET_MS],
)
MAX_BUDGET = 10**12


def budget_of(headers: Headers) -> Budget | None:
    """Return the budget, or None. Raises InvalidRequest: A header is malformed."""
    if CALLS not in headers and TOKENS not in headers and MS not in headers:
        return None
    wall_ms = _number(headers, MS)
    return Budget(
        _number(headers, CALLS),
        _number(headers, TOKENS),
        None if wall_ms is None else wall_ms * 1_000,
    )


def _number(headers: Headers, name: bytes) -> int | None:
    value = headers.get(name)
    if value is None:
        return None
    if not (value.isdigit() and len(value) <= 18 and 0 < int(value) <= MAX_BUDGET):
        raise InvalidRequest(f"header {name.decode()} must be a number from 1 to {MAX_BUDGET}")
    return int(value)
