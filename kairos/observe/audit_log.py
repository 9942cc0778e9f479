"""The audit log: what operators did, and who was refused. JSON lines, bounded, without secrets and
bodies.

What an operator does has a line of its own, at once. Refusals can be as many as requests, and
whoever sends them must neither fill the disk nor push older lines out: of each caller the first in
a minute has a line, and the others are counted; of callers beyond a number all are counted
together.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec

from kairos.core.errors import KairosError, SetupError
from kairos.core.model import SECOND
from kairos.host.clock import WallClock
from kairos.observe.rotated_file import RotatedFile
from kairos.request.caller import Caller, NotAllowed

logger = logging.getLogger(__name__)

Port = Literal["callers", "operators"]

FLUSH_S = 1.0
WINDOW_US = 60 * SECOND
MOST_CALLERS = 50  # in a window, of tenants' keys and of addresses, that have lines of their own
ADDRESS = "at "  # before the address by which a caller is known that has no tenant yet
_OTHERS = "others"
_STATUSES = {401, 403, 421, 429}
_PENDING_BYTES = 1 << 20  # that are kept while the disk takes nothing
_SHOWN = 200  # characters of what a client chose


class AuditEntry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A line."""

    at: str  # in UTC
    what: str  # METHOD /path of an operator's request; reload; refused
    port: Port | None = None
    tenant: str | None = None  # of the key or token that was shown, if it is known
    name: str | None = None  # of the key, or the first digits of its digest; a token's subject
    address: str | None = None  # where the tenant is not known; "others": many
    target: str | None = None  # which engine, which settings
    status: int | None = None  # of HTTP
    code: str | None = None  # of the error
    message: str | None = None
    count: int = 1
    since: str | None = None  # the first of so many


class _Refused(NamedTuple):
    """What refusals have in common that are counted together."""

    port: Port
    status: int
    code: str
    tenant: str | None
    name: str | None
    address: str | None


class AuditLog:
    """Call `flush` now and then."""

    def __init__(self, file: RotatedFile, now: Callable[[], int]) -> None:
        """`now`: microseconds since the Unix epoch."""
        self._file, self._now = file, now
        self._encoder = msgspec.json.Encoder()
        self._pending = bytearray()
        self._is_failing = False
        self._lost = 0  # lines, since it fails
        self._counts: dict[_Refused, int] = {}  # in this window, beyond those with lines
        self._callers = {True: 0, False: 0}  # that have lines in it: of known tenants, of addresses
        self._since = now()  # the window's beginning

    def acted(
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
        """An operator did something, or tried to. It is written at once."""
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

    def refused(
        self, error: KairosError, by: Caller | None, address: str | None, port: Port = "callers"
    ) -> None:
        """Somebody was, if that is what the error means."""
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
        """Write what has come, and at the end of a window how many were refused in it."""
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
        self._since -= WINDOW_US  # what was counted is told
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
    """In UTC, to the millisecond."""
    told = datetime.fromtimestamp(us / SECOND, UTC).isoformat(timespec="milliseconds")
    return told.replace("+00:00", "Z")


OnError = Callable[[KairosError, Caller | None, str], None]


def counting(count: Callable[[KairosError], None], audit: AuditLog | None) -> OnError:
    """What hears of the errors that calls are answered with: figures, and the audit log. It is told
    who calls, if that is known, and by what name it has its share."""

    def heard(error: KairosError, caller: Caller | None, called: str) -> None:
        count(error)
        if audit is not None:
            is_address = called.startswith(ADDRESS)
            audit.refused(error, caller, called.removeprefix(ADDRESS) if is_address else None)

    return heard


def auditing(audit: AuditLog | None) -> list[Coroutine[None, None, None]]:
    return [] if audit is None else [_flush(audit)]


async def _flush(audit: AuditLog) -> None:
    while True:
        await asyncio.sleep(FLUSH_S)
        audit.flush()


@contextlib.contextmanager
def open_audit_log(path: str | None) -> Iterator[AuditLog | None]:
    """Raises SetupError: it cannot be written."""
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
