"""Limits and counters of a run."""

import msgspec

from kairos.core import SetupError

MOST_IN_FLIGHT = 10_000  # size of a balancer's queue
OPEN_ROWS = 4_096  # allowed on any pool


class FlowLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of a run.

    `capacity`: calls that the engines run at once. Twice as many are released, so that a call that
    ends has its successor at the engine already. `max_calls`, `max_tokens`: None for no limit.

    Raises:
        SetupError: a limit is below 1.
    """

    capacity: int
    at_once: int | None = None  # calls, and functions, in flight at most; None: as above
    kv_tokens: int | None = None  # of all engines' memory; None: not known
    instances: int = 1  # engines
    functions: int = 32  # functions that run at once
    processors: int = 256  # calls of processors, and of batched functions, in flight
    max_open_rows: int | None = None  # None: see `open_rows`
    max_open_bytes: int = 64 * 1024 * 1024  # of rows as read, and their vectors
    caches_prefixes: bool = True  # False: no engine caches prefixes
    memo_bytes: int = 64 * 1024 * 1024  # of results shared with other rows
    # Of one row; None: no limit.
    row_steps: int | None = None  # steps of operators, and values that they ask for
    row_bytes: int | None = None  # of the values of operators
    max_calls: int | None = None
    max_tokens: int | None = None

    def __post_init__(self) -> None:
        for name, value in msgspec.structs.asdict(self).items():
            is_count = value is not None and not isinstance(value, bool)
            if is_count and value < (name != "memo_bytes"):
                raise SetupError(f"{name} of a run is {value}, and must be at least 1")


def open_rows(capacity: int) -> int:
    """Return the number of open rows if no limit is given.

    With one call each they fill the window, twice the capacity, and as many more calls are ready as
    the engines run.
    """
    return max(OPEN_ROWS, min(2 * capacity, MOST_IN_FLIGHT) + capacity)


class FlowFigures(msgspec.Struct):
    """Counters of this session of the run; `open` and `in_flight` are current values."""

    read: int = 0  # rows, and groups
    written: int = 0
    failed: int = 0
    dropped: int = 0
    gathered: int = 0
    open: int = 0
    in_flight: int = 0
    calls: int = 0  # LLM calls issued, retries included
    functions: int = 0
    processed: int = 0  # calls of processors
    retried: int = 0
    merged: int = 0  # results taken from an equal call
    fetched: int = 0  # results found in the cache
    resumed: int = 0  # results of an earlier session
    skipped: int = 0  # rows that continued without a value (`on_error: skip`)
    defaulted: int = 0  # rows that continued with a default
    cut: int = 0  # answers that were cut, or without text
    touched: int = 0  # prefixes computed ahead
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
