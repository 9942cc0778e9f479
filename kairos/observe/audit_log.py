"""Audit log of operators' actions and of refused callers.

Bounded JSON lines, without secrets or bodies, in files that several processes append to. An action
of an operator gets a line of its own at once. Refusals can be as many as requests, and their
senders must neither fill the disk nor displace older lines: per caller, the first refusal each
minute has a line and the others are counted; callers beyond a number are counted together.
"""

import contextlib
import fcntl
import logging
import os
import stat
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec

from kairos.core import SECOND, KairosError, SetupError
from kairos.host import WallClock
from kairos.request import Caller, NotAllowed

logger = logging.getLogger(__name__)

Port = Literal["callers", "operators"]

WINDOW_US = 60 * SECOND
MOST_CALLERS = 50  # keys, and as many addresses, with lines of their own in a window
ADDRESS = "at "  # prefix of a caller's address, if its tenant is unknown
_OTHERS = "others"
_STATUSES = {401, 403, 421, 429}
_PENDING_BYTES = 1 << 20  # buffered while the disk cannot be written
_SHOWN = 200  # characters of texts that a client chooses

FILE_BYTES = 16 << 20
MAX_FILES = 16


class RotatedFile:
    """`PATH`, and the earlier files `PATH.1`, `PATH.2` and so on, readable only by their owner.

    The process that finds it full renames it, under a lock; the others notice at their next line
    that it is another file. Renaming by other programs (`logrotate`) is noticed in the same way.
    """

    def __init__(
        self, path: Path, *, file_bytes: int = FILE_BYTES, max_files: int = MAX_FILES
    ) -> None:
        """Open the file. Raises OSError: it cannot be appended to."""
        self._path, self._file_bytes, self._max_files = path, file_bytes, max_files
        self._file = self._open()

    def append(self, lines: bytes) -> None:
        """Append complete lines, which do not mix with lines of other processes.

        Raises:
            OSError: they are not written, or the last of them in part.
        """
        if not self._is_in_place():
            self._reopen()
        size = os.fstat(self._file).st_size
        if size and size + len(lines) > self._file_bytes:
            self._rotate()
        while lines:
            lines = lines[os.write(self._file, lines) :]

    def close(self) -> None:
        os.close(self._file)

    def _open(self) -> int:
        file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        if not stat.S_ISREG(os.fstat(file).st_mode):
            os.close(file)
            raise OSError(0, "it is not a regular file")
        return file

    def _reopen(self) -> None:
        opened = self._open()
        os.close(self._file)
        self._file = opened

    def _is_in_place(self) -> bool:
        try:
            there = self._path.stat()
        except FileNotFoundError:
            return False
        return os.path.samestat(there, os.fstat(self._file))

    def _rotate(self) -> None:
        fcntl.flock(self._file, fcntl.LOCK_EX)  # until it is closed
        if self._is_in_place():
            for number in range(self._max_files - 2, 0, -1):
                if self._aside(number).exists():
                    self._aside(number).replace(self._aside(number + 1))
            self._path.replace(self._aside(1))
        self._reopen()

    def _aside(self, number: int) -> Path:
        return self._path.with_name(f"{self._path.name}.{number}")


class AuditEntry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    at: str  # in UTC
    what: str  # METHOD /path of an operator's request; reload; refused
    port: Port | None = None
    tenant: str | None = None  # tenant of the key or token, if known
    name: str | None = None  # the key's name or first digits of its digest; a token's subject
    address: str | None = None  # if the tenant is unknown; "others": several callers
    target: str | None = None  # the engine or settings concerned
    status: int | None = None  # HTTP status
    code: str | None = None  # code of the error
    message: str | None = None
    count: int = 1
    since: str | None = None  # start of the window in which `count` refusals happened


class _Refused(NamedTuple):
    """Common properties of refusals that are counted together."""

    port: Port
    status: int
    code: str
    tenant: str | None
    name: str | None
    address: str | None


class AuditLog:
    """Writer of the audit log. Call `flush` regularly."""

    def __init__(self, file: RotatedFile, now: Callable[[], int]) -> None:
        """`now`: µs since the Unix epoch."""
        self._file, self._now = file, now
        self._encoder = msgspec.json.Encoder()
        self._pending = bytearray()
        self._is_failing = False
        self._lost = 0  # lines lost since writing began to fail
        self._counts: dict[_Refused, int] = {}  # refusals in this window without lines of their own
        self._callers = {True: 0, False: 0}  # callers with lines: of known tenants, by address
        self._since = now()  # start of the window

    def log_action(
        self,
        what: str,
        *,
        by: Caller | None = None,
        address: str | None = None,
        port: Port | None = None,
        target: str | None = None,
        status: int | None = None,
        message: str | None = None,
    ) -> None:
        """Log an operator's action, or an attempt, at once."""
        self._add(
            AuditEntry(
                at=_shown(self._now()),
                what=what[:_SHOWN],
                port=port,
                tenant=None if by is None else by.tenant,
                name=None if by is None else by.name,
                address=address,
                target=None if target is None else target[:_SHOWN],
                status=status,
                message=None if message is None else message[:_SHOWN],
            )
        )
        self.flush()

    def log_refusal(
        self, error: KairosError, by: Caller | None, address: str | None, port: Port = "callers"
    ) -> None:
        """Log or count a refused call; other errors are ignored."""
        if error.status not in _STATUSES:
            return
        if by is None and isinstance(error, NotAllowed):
            by = error.by
        tenant, name = (None, None) if by is None else (by.tenant, by.name)
        refused = _Refused(port, error.status, error.code, tenant, name, address)
        if refused in self._counts:
            self._counts[refused] += 1
            return
        if self._callers[by is not None] >= MOST_CALLERS:
            others = refused._replace(tenant=None, name=None, address=_OTHERS)
            self._counts[others] = self._counts.get(others, 0) + 1
            return
        self._callers[by is not None] += 1
        self._counts[refused] = 0
        self._add_refused(refused, 1, None)

    def flush(self) -> None:
        """Write buffered lines, and at the end of a window the numbers of further refusals."""
        now = self._now()
        if now - self._since >= WINDOW_US:
            for refused, count in self._counts.items():
                if count:
                    self._add_refused(refused, count, _shown(self._since))
            self._counts.clear()
            self._callers = {True: 0, False: 0}
            self._since = now
        self._write()

    def close(self) -> None:
        self._since -= WINDOW_US  # ends the window, so that its counts are written
        self.flush()
        self._file.close()

    def _add_refused(self, refused: _Refused, count: int, since: str | None) -> None:
        told = refused._asdict()
        self._add(
            AuditEntry(at=_shown(self._now()), what="refused", count=count, since=since, **told)
        )

    def _add(self, entry: AuditEntry) -> None:
        if len(self._pending) >= _PENDING_BYTES:
            self._lost += 1
            return
        self._encoder.encode_into(entry, self._pending, -1)
        self._pending += b"\n"

    def _write(self) -> None:
        if not self._pending:
            return
        try:
            self._file.append(bytes(self._pending))
        except OSError as error:
            if not self._is_failing:
                logger.warning("the audit log cannot be written: %s", error.strerror)
            self._is_failing = True
            return
        self._pending.clear()
        if self._is_failing:
            logger.warning("the audit log is written again; %d lines are lost", self._lost)
        self._is_failing, self._lost = False, 0


def _shown(us: int) -> str:
    """Return the time in UTC, to the millisecond."""
    told = datetime.fromtimestamp(us / SECOND, UTC).isoformat(timespec="milliseconds")
    return told.replace("+00:00", "Z")


OnError = Callable[[KairosError, Caller | None, str], None]


def count_errors(count: Callable[[KairosError], None], audit: AuditLog | None) -> OnError:
    """Return a function that counts errors in metrics and logs refusals in the audit log.

    It is called with the error, the caller, if known, and the caller's name for its share.
    """

    def heard(error: KairosError, caller: Caller | None, called: str) -> None:
        count(error)
        if audit is not None:
            is_address = called.startswith(ADDRESS)
            audit.log_refusal(error, caller, called.removeprefix(ADDRESS) if is_address else None)

    return heard


@contextlib.contextmanager
def open_audit_log(path: str | None) -> Iterator[AuditLog | None]:
    """Open the audit log, if it has a path. Raises SetupError: it cannot be written."""
    if path is None:
        yield None
        return
    try:
        file = RotatedFile(Path(path))
    except (OSError, ValueError) as error:
        problem = (isinstance(error, OSError) and error.strerror) or error
        raise SetupError(f"the audit log {path} cannot be written: {problem}") from None
    with contextlib.closing(AuditLog(file, WallClock().now)) as audit:
        yield audit
