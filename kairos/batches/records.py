"""Records of files and batches, and the errors of their requests."""

import re
import secrets
from collections.abc import Mapping
from typing import Literal

import msgspec

from kairos.batches.batch_input import LineError
from kairos.core import InvalidRequest, KairosError
from kairos.request import Caller

State = Literal[
    "validating",
    "in_progress",
    "finalizing",
    "completed",
    "failed",
    "expired",
    "cancelling",
    "cancelled",
]
OPEN: tuple[State, ...] = ("validating", "in_progress", "finalizing", "cancelling")
ENDED: tuple[State, ...] = ("completed", "failed", "expired", "cancelled")
ENDPOINTS = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/embeddings",
    "/v1/responses",
    "/v1/messages",
)
IDEMPOTENCY_KEY = "Idempotency-Key"
MAX_METADATA = 16  # pairs
MAX_KEY, MAX_VALUE = 64, 512  # characters
MIN_KEPT_S, MAX_KEPT_S = 3_600, 2_592_000  # that a client may set for a file
_UNITS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}
_WINDOW = re.compile(r"([1-9][0-9]{0,5})([smhd])")
_MAX_WINDOW_S = 7 * 86_400


class FileRecord(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    tenant: str
    purpose: str  # batch, or batch_output
    filename: str
    size_bytes: int
    created_s: int  # since the Unix epoch
    expires_s: int
    asked_as: str | None = None  # the digest of its `Idempotency-Key`


class BatchUsage(msgspec.Struct, frozen=True):
    """Tokens of all answers, as their engines counted them."""

    input_tokens: int = 0
    cached_tokens: int = 0  # of the input
    output_tokens: int = 0
    reasoning_tokens: int = 0  # of the output


class BatchRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Parameters and state of a batch.

    It has no API key: the caller is stored as the key identified it when the batch was made.
    """

    id: str
    caller: Caller
    service_class: str
    endpoint: str
    input_file_id: str
    completion_window: str
    headers: Mapping[str, str] = {}  # that name the app and the agent of its calls
    metadata: Mapping[str, str] | None = None
    output_kept_s: int | None = None  # None: the default for files
    asked_as: str | None = None  # the digest of its `Idempotency-Key`
    state: State = "validating"
    total: int = 0  # lines
    model: str | None = None  # if all lines name the same
    usage: BatchUsage | None = None  # once it has ended
    errors: tuple[LineError, ...] = ()
    output_file_id: str | None = None
    error_file_id: str | None = None
    # Times are seconds since the Unix epoch, at which the batch entered a state.
    created_s: int
    expires_s: int  # the end of its window
    in_progress_s: int | None = None
    finalizing_s: int | None = None
    cancelling_s: int | None = None
    ended_s: int | None = None  # with any outcome


class BatchCounts(msgspec.Struct, frozen=True):
    completed: int = 0
    failed: int = 0


class KeyReused(KairosError):
    """A request has the `Idempotency-Key` of a different request."""

    status = 422
    code = "idempotency_key_reused"

    def __init__(self, name: str) -> None:
        super().__init__(
            f"{IDEMPOTENCY_KEY} was used by a different request, which made {name}: "
            "a new request needs a new key"
        )


class NoSuchFile(KairosError):
    """The tenant has no file of this id: it never existed, was deleted, or has expired."""

    status = 404
    code = "file_not_found"

    def __init__(self, name: str) -> None:
        super().__init__(f"there is no file '{name[:64]}'; GET /v1/files lists those there are")
        self.param = "id"


class NoSuchBatch(KairosError):
    """The tenant has no batch of this id."""

    status = 404
    code = "batch_not_found"

    def __init__(self, name: str) -> None:
        super().__init__(f"there is no batch '{name[:64]}'; GET /v1/batches lists those there are")
        self.param = "id"


class FileInUse(KairosError):
    """A batch that has not ended reads the file."""

    status = 409
    code = "file_in_use"
    retries = False

    def __init__(self, name: str, batch: str) -> None:
        super().__init__(f"{name} is the input of {batch}, which has not ended: cancel that first")


class NotCancellable(KairosError):
    """The batch has ended, or is about to."""

    status = 409
    code = "batch_not_cancellable"
    retries = False

    def __init__(self, batch: str, state: State) -> None:
        super().__init__(f"{batch} is {state}: only validating and running batches are cancelled")


class BatchLimit(InvalidRequest):
    """The tenant has as many files, bytes of files or open batches as it may have."""

    status = 429
    code = "batch_limit"
    retries = True


class FileTooLarge(InvalidRequest):
    """A file is larger than a tenant may upload (`max_file_bytes` of `[batches]`)."""

    status = 413
    code = "file_too_large"

    def __init__(self, limit_bytes: int) -> None:
        super().__init__(f"a file may have {limit_bytes} bytes at most: split it")


class NoBatches(KairosError):
    """Files and batches are off in this Kairos."""

    status = 404
    code = "batches_off"
    says = (
        "files and batches are off in this Kairos: its operator turns them on with directory "
        "of [batches] in the settings"
    )


def new_name(kind: str) -> str:
    """Return an id that cannot be guessed."""
    return f"{kind}{'-' if kind == 'file' else '_'}{secrets.token_hex(12)}"


def window_s(told: object) -> int:
    """Return the seconds of a `completion_window`. Raises InvalidRequest."""
    found = _WINDOW.fullmatch(told) if isinstance(told, str) else None
    seconds = int(found[1]) * _UNITS[found[2]] if found is not None else 0
    if not 0 < seconds <= _MAX_WINDOW_S:
        raise InvalidRequest(
            "completion_window must be a number with s, m, h or d, at most 7d, such as '24h'"
        )
    return seconds
