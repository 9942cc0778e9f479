"""Log of facts and decisions on disk: bounded, append-only JSON lines, without bodies.

Where a process died, its log leaves calls and instances open; readers get facts that close them.
"""

import asyncio
import contextlib
import logging
import os
from collections.abc import Coroutine, Iterable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

import msgspec

from kairos.core import (
    Arrived,
    Cancelled,
    Failed,
    Finished,
    Instance,
    InstanceJoined,
    InstanceLeft,
    InvalidFile,
    Record,
    Refuse,
    SetupError,
    Started,
)
from kairos.host import atomic_write
from kairos.observe.audit_log import AuditLog

logger = logging.getLogger(__name__)

_FLUSH_BYTES = 1 << 16
_PENDING_LIMIT_BYTES = 16 << 20
FILE_BYTES = 64 << 20
MAX_FILES = 16
FLUSH_S = 1.0

LOST = "lost_at_restart"  # reason of failure of such a call

_FILE = "instances.json"
_MOST = 4_096  # instances; beyond, the ones reported longest ago are dropped


class InstanceLimits:
    """Latest report of each instance, and, once it is needed, a file of these next to the log.

    It is needed when the oldest files of the log are deleted. Instances are reported when they
    join, which may be weeks ago; `kairos usage`, which measures calls from the log, needs their
    limits.
    """

    def __init__(self, directory: Path) -> None:
        self._path = directory / _FILE
        self._known = {each.id: each for each in read_limits(directory)}
        self.is_needed = bool(self._known)  # whether files of the log were deleted
        self._changed = self._failing = False

    def record_limits(self, instance: Instance) -> None:
        self._known.pop(instance.id, None)
        self._known[instance.id] = instance
        if len(self._known) > _MOST:
            del self._known[next(iter(self._known))]
        self._changed = True

    def write(self) -> None:
        """Write the file, if there is news and files of the log were deleted.

        A failed write is retried the next time.
        """
        if not self.is_needed or not self._changed:
            return
        try:
            with atomic_write(self._path, mode=0o600) as file:
                file.write(msgspec.json.encode(list(self._known.values())))
        except SetupError as error:
            if not self._failing:
                logger.warning("the limits of instances cannot be saved: %s", error)
            self._failing = True
        else:
            self._changed = self._failing = False


def read_limits(directory: Path) -> list[Instance]:
    """Return the stored limits; empty for a complete log or a damaged file."""
    with contextlib.suppress(OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return msgspec.json.decode((directory / _FILE).read_bytes(), type=list[Instance])
    return []


class FactLog:
    """Writer of records to `DIR/facts-NNNNNN.jsonl`. The oldest files are deleted for new ones.

    The last known limits of instances are stored separately (`InstanceLimits`). Lines are
    written in blocks: call `flush` regularly, so that a quiet log is readable, too. While the disk
    cannot be written, serving goes on: up to `_PENDING_LIMIT_BYTES` are buffered, and later records
    are lost, which is logged.
    """

    def __init__(
        self, directory: Path, *, file_bytes: int = FILE_BYTES, max_files: int = MAX_FILES
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self._file_bytes, self._max_files = file_bytes, max_files
        self._limits = InstanceLimits(directory)
        self._encoder = msgspec.json.Encoder()
        self._pending = bytearray()
        self.is_failing = False  # whether the last write failed
        self._lost = 0  # records lost since writing began to fail
        self._file, self._size = self._next_file()

    def __call__(self, record: Record) -> None:
        if len(self._pending) >= _PENDING_LIMIT_BYTES:
            self._lost += 1
            return
        if type(record.event) is InstanceJoined:
            self._limits.record_limits(record.event.instance)
        self._encoder.encode_into(record, self._pending, -1)
        self._pending += b"\n"
        if len(self._pending) >= _FLUSH_BYTES:
            self.flush()

    def flush(self) -> None:
        self._limits.write()
        try:
            self._write()
        except OSError as error:
            if not self.is_failing:
                logger.warning("the log in %s cannot be written: %s", self._directory, error)
            self.is_failing = True
        else:
            if self.is_failing:
                logger.warning("the log is written again; %d facts are lost", self._lost)
            self.is_failing, self._lost = False, 0

    def _write(self) -> None:
        if not self._pending:
            return
        if self._size >= self._file_bytes:
            self._file.close()
            self._file, self._size = self._next_file()
        while self._pending:
            written = self._file.write(self._pending)  # possibly only a part, on a full disk
            self._size += written
            del self._pending[:written]

    def close(self) -> None:
        self.flush()
        self._file.close()

    def _next_file(self) -> tuple[BinaryIO, int]:
        files = _files(self._directory)
        number = int(files[-1].stem.removeprefix("facts-")) + 1 if files else 1
        for old in files[: max(0, len(files) + 1 - self._max_files)]:
            old.unlink()
            self._limits.is_needed = True
        path = self._directory / f"facts-{number:06d}.jsonl"
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        return os.fdopen(descriptor, "wb", buffering=0), 0


def read_facts(directory: Path) -> Iterator[Record]:
    """Yield all records of a log, oldest first.

    An incomplete last line is skipped, and what a crash left open is closed (`with_closing_facts`).

    Raises:
        InvalidFile: another line is invalid.
    """
    yield from with_closing_facts(record for path in _files(directory) for record in _records(path))


def read_recent(
    directory: Path, since_at: int, always: tuple[type[msgspec.Struct], ...]
) -> Iterator[Record]:
    """Yield the records of `read_facts`, but only facts of `always` from files before `since_at`.

    `since_at` is in µs. Other lines of those files are not decoded, which takes a fiftieth of the
    time.
    """
    kinds: tuple[type[msgspec.Struct], ...] = (*always, Started)
    marks = [f'"type":"{kind.__struct_config__.tag}"'.encode() for kind in kinds]
    files = _files(directory)
    begins = [next((each.at for each in _records(path)), None) for path in files]
    whether_old = [each is not None and each < since_at for each in begins[1:]] + [False]
    told = zip(files, whether_old, strict=True)
    yield from with_closing_facts(
        record for path, is_old in told for record in _records(path, marks if is_old else ())
    )


def _records(path: Path, marks: Sequence[bytes] = ()) -> Iterator[Record]:
    """Yield the records of a file.

    If `marks` are given, only from lines that contain one of them.
    """
    decoder = msgspec.json.Decoder(Record)
    with path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            if line.endswith(b"\n") and (not marks or any(mark in line for mark in marks)):
                try:
                    record = decoder.decode(line)
                except (msgspec.MsgspecError, UnicodeDecodeError) as error:
                    raise InvalidFile(path, f"invalid record: {error}", line=number) from None
                yield record


def _files(directory: Path) -> list[Path]:
    return sorted(directory.glob("facts-[0-9][0-9][0-9][0-9][0-9][0-9].jsonl"))


def note_start(
    log: FactLog | None, at: int, calls: tuple[str, ...] = (), instances: tuple[str, ...] = ()
) -> None:
    """Log that this process has started and knows only these calls and instances (at: µs)."""
    if log is not None:
        log(Record(at, Started(calls, instances)))


def flush_tasks(log: FactLog | AuditLog | None) -> list[Coroutine[None, None, None]]:
    return [] if log is None else [_flush(log)]


async def _flush(log: FactLog | AuditLog) -> None:
    while True:
        await asyncio.sleep(FLUSH_S)
        log.flush()


@contextlib.contextmanager
def open_log(directory: str | None) -> Iterator[FactLog | None]:
    if directory is None:
        yield None
        return
    try:
        log = FactLog(Path(directory))
    except OSError as error:
        raise SetupError(f"cannot use the log directory {directory}: {error.strerror}") from None
    with contextlib.closing(log):
        yield log


def with_closing_facts(records: Iterable[Record]) -> Iterator[Record]:
    """Yield the records, with closing facts where the process restarted.

    At each `Started`, calls and instances that it does not list end first, at the time of the last
    fact before it.
    """
    calls: dict[str, None] = {}  # calls in flight, in order of arrival
    instances: dict[str, None] = {}
    heard_at = 0
    for record in records:
        event = record.event
        if type(event) is Started:
            lost, gone = calls.keys() - set(event.calls), instances.keys() - set(event.instances)
            at = min(heard_at, record.at)
            yield from (Record(at, Failed(each, LOST)) for each in calls if each in lost)
            yield from (Record(at, InstanceLeft(each)) for each in instances if each in gone)
            calls = {each: None for each in calls if each not in lost}
            instances = {each: None for each in instances if each not in gone}
        _follow(record, calls, instances)
        heard_at = record.at
        yield record


def _follow(record: Record, calls: dict[str, None], instances: dict[str, None]) -> None:
    event = record.event
    if type(event) is Arrived:
        calls[event.request.id] = None
    elif type(event) is Finished or type(event) is Failed or type(event) is Cancelled:
        calls.pop(event.request_id, None)
    elif type(event) is InstanceJoined:
        instances[event.instance.id] = None
    elif type(event) is InstanceLeft:
        instances.pop(event.instance_id, None)
    for command in record.commands:
        if type(command) is Refuse:
            calls.pop(command.request_id, None)
