"""How much a run may have under way, and what it did so far."""

import msgspec

from kairos.core.errors import SetupError

MOST_IN_FLIGHT = 10_000  # what a balancer's queue holds
OPEN_ROWS = 4_096  # that may be open on any pool


class FlowLimits(msgspec.Struct, frozen=True, kw_only=True):
    """`capacity`: calls that the engines run at once. Twice as many are released, so that one that
    ends has its successor at the engine already. `max_calls` and `max_tokens` None: as many
    as it likes.

    Raises:
        SetupError: one is below 1.
    """

    capacity: int
    at_once: int | None = None  # calls, and functions, that are under way at most; None: as above
    kv_tokens: int | None = None  # that the engines' memory holds together; None: not known
    instances: int = 1  # engines
    functions: int = 32  # functions that run at once
    processors: int = 256  # calls of processors, and of batched functions, that are under way
    max_open_rows: int | None = None  # None: see `open_rows`
    max_open_bytes: int = 64 * 1024 * 1024  # of rows as they were read, and their vectors
    caches_prefixes: bool = True  # False: no engine keeps what it computed of a prompt
    memo_bytes: int = 64 * 1024 * 1024  # of results that other rows may share
    # Of one row; None: what it likes.
    row_steps: int | None = None  # of operators, and values that they ask for
    row_bytes: int | None = None  # of the values that they give
    max_calls: int | None = None
    max_tokens: int | None = None

    def __post_init__(self) -> None:
        for name, value in msgspec.structs.asdict(self).items():
            is_count = value is not None and not isinstance(value, bool)
            if is_count and value < (name != "memo_bytes"):
                raise SetupError(f"{name} of a run is {value}, and must be at least 1")


def open_rows(capacity: int) -> int:
    """Return how many rows may be open where nobody said.

    With one call each they fill the window, twice the capacity, and as many calls stand ready as
    the engines run.
    """
    return max(OPEN_ROWS, min(2 * capacity, MOST_IN_FLIGHT) + capacity)


class FlowFigures(msgspec.Struct):
    """Counted since this session of the run began; `open` and `in_flight` are of now."""

    read: int = 0  # rows, and groups
    written: int = 0
    failed: int = 0
    dropped: int = 0
    gathered: int = 0
    open: int = 0
    in_flight: int = 0
    calls: int = 0  # LLM calls that were issued, with those that were made again
    functions: int = 0
    processed: int = 0  # calls of processors
    retried: int = 0
    merged: int = 0  # results that an equal call gave
    fetched: int = 0  # results that the cache had
    resumed: int = 0  # results that an earlier session had
    skipped: int = 0  # rows that went on without a value (`on_error: skip`)
    defaulted: int = 0  # rows that went on with a default
    cut: int = 0  # answers that were cut, or had no text
    touched: int = 0  # beginnings of prompts that were computed ahead
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
