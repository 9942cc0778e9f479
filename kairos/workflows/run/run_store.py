"""Where runs are kept: a directory of each, for its owner alone, with what the run is to do
(`run.json`), what it has found out (`journal.sqlite`), and a lock of whoever drives it.

A run whose process died keeps the state that it had, but nobody holds its lock. Those that nobody
touched for `KEEP_DAYS` are removed when another begins: journals hold what was asked and answered.
"""

import fcntl
import os
import re
import secrets
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import msgspec

from kairos.core.errors import SetupError
from kairos.host.files import atomic_write
from kairos.settings.retrieval import RetrievalSettings
from kairos.workflows.compile.flow_profile import FlowProfile
from kairos.workflows.execute.observation import Fallback

KEEP_DAYS = 30
_NAME_LENGTH = 32  # of a flow's name within an id
_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")

State = Literal["running", "stopped", "done", "cancelled"]


class RunForecast(msgspec.Struct, frozen=True):
    """What was expected of a run before it began: means, and the interval of its time."""

    time_s: float
    low_s: float
    high_s: float
    calls: int
    prompt_tokens: float
    completion_tokens: float
    cached_share: float


class RunRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What a run is to do and how far it is, so that another process can go on with it. No key is
    in it, but the name of the variable that holds one."""

    id: str
    flow: str  # its name
    flow_path: str | None = None  # None: made in a program, which alone can go on with it
    functions_path: str | None = None
    inputs: str | None = None
    out: str  # empty: a program that goes on with it on this host has not said it yet
    engines: tuple[str, ...] = ()  # as --engine names them
    url: str | None = None
    host: str | None = None  # the file of a host whose devices switch models
    api_key_env: str | None = None
    model: str | None = None
    revision: str = ""
    service_class: str = "batch"
    concurrency: int | None = None
    plan_digest: str = ""  # of the flow and its functions, as they were last run
    passes: dict[str, bool] = {}
    batches: dict[
        str, int
    ] = {}  # efficient ones that were measured, by `workflows/compile/batches.py`
    learnt: FlowProfile | None = None  # of the flow, with `host`: by it work is placed
    retrieval: RetrievalSettings | None = None  # what processes its operators of retrieval
    uses_cache: bool = True
    max_calls: int | None = None
    max_tokens: int | None = None
    bus: str | None = None  # of a run that an older Kairos began on Kafka
    on: str | None = None  # the Ray that has its partitions: local-ray, or ray://HEAD:PORT
    partitions: int | None = None  # None: one for each of its CPUs
    results: str | None = None  # the PostgreSQL of its results; None: files here
    state: State = "running"
    detail: str = ""  # why it stopped
    created_at: int  # µs since the epoch
    changed_at: int
    figures: dict[str, int] = {}
    fallbacks: dict[str, Fallback] = {}  # by operator
    waits_for: str = ""  # why calls are not answered for now
    took_s: float = 0.0  # sessions together, from the first call until all rows have ended
    forecast: RunForecast | None = None
    written: dict[str, tuple[int, int]] = {}  # of each file that it wrote, bytes and ns of mtime

    @property
    def has_failures(self) -> bool:
        return self.figures.get("failed", 0) > 0


class RunDirectory:
    """One run's files."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.journal = path / "journal.sqlite"
        self._lock, self._record = path / "lock", path / "run.json"

    def read(self) -> RunRecord:
        """Raises SetupError: it is not there, or not readable."""
        try:
            return msgspec.json.decode(self._record.read_bytes(), type=RunRecord)
        except OSError as error:
            raise SetupError(f"{self._record} cannot be read: {error.strerror}") from None
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise SetupError(f"{self._record} is no run of this Kairos: {error}") from None

    def write(self, record: RunRecord) -> None:
        """Raises SetupError: it cannot be written."""
        with atomic_write(self._record, mode=0o600) as file:
            file.write(msgspec.json.format(msgspec.json.encode(record)))

    @contextmanager
    def held(self) -> Iterator[None]:
        """Nobody else drives the run while the block runs.

        Raises:
            SetupError: somebody does.
        """
        descriptor = os.open(self._lock, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise SetupError(
                    f"the run {self.path.name} is under way in another process (see: kairos runs "
                    "list)"
                ) from None
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, str(os.getpid()).encode(), 0)
            yield
        finally:
            os.close(descriptor)

    def holder(self) -> int | None:
        """The process that drives the run, if there is one."""
        try:
            descriptor = os.open(self._lock, os.O_RDWR)
        except FileNotFoundError:
            return None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return int(os.pread(descriptor, 20, 0) or b"0") or None
        finally:
            os.close(descriptor)
        return None

    def stop_holder(self, limit_s: float) -> None:
        """Ask whoever drives the run to stop, and wait until it has.

        Raises:
            SetupError: it has not in this time.
        """
        if (process := self.holder()) is None:
            return
        os.kill(process, signal.SIGTERM)
        until = time.monotonic() + limit_s
        while self.holder() is not None:
            if time.monotonic() > until:
                raise SetupError(f"process {process} finishes its calls still; try again later")
            time.sleep(0.05)

    def forget_results(self) -> None:
        for file in self.path.glob("journal.sqlite*"):
            file.unlink()


class RunStore:
    def __init__(self, root: Path) -> None:
        """Raises SetupError: it cannot be a directory of ours."""
        self.root, self.cache, self._runs = root, root / "cache.sqlite", root / "runs"
        try:
            for path in (root, self._runs):
                path.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise SetupError(f"{root} cannot hold runs: {error.strerror}") from None

    def new_id(self, flow: str) -> str:
        return f"{flow[:_NAME_LENGTH]}-{secrets.token_hex(4)}"

    def create(self, record: RunRecord) -> RunDirectory:
        """The directory of a run that is new here, after those that are too old were removed.

        Raises:
            SetupError: no run can be called so.
        """
        if not _ID.fullmatch(record.id):
            raise SetupError(f"no run can be called '{record.id[:64]}'")
        self._remove_old()
        directory = RunDirectory(self._runs / record.id)
        directory.path.mkdir(mode=0o700)
        directory.write(record)
        return directory

    def find(self, name: str) -> RunDirectory:
        """By its id, or the beginning of that, if it is of one alone.

        Raises:
            SetupError: there is none, or more than one.
        """
        found = [each for each in self._directories() if each.path.name.startswith(name)]
        exact = [each for each in found if each.path.name == name]
        if not _ID.fullmatch(name) or not found:
            raise SetupError(f"no run is called '{name[:64]}' (see: kairos runs list)")
        if len(found) > 1 and not exact:
            names = ", ".join(each.path.name for each in found[:5])
            raise SetupError(f"'{name}' may be any of {names}: give more of its name")
        return (exact or found)[0]

    def having(self, name: str) -> RunDirectory | None:
        """The same; None: there is none. Raises SetupError: there is more than one."""
        found = [each for each in self._directories() if each.path.name.startswith(name)]
        return self.find(name) if found else None

    def all(self) -> list[tuple[RunDirectory, RunRecord]]:
        """Those that can be read, the latest first."""
        found = []
        for directory in self._directories():
            try:
                found.append((directory, directory.read()))
            except SetupError:
                continue
        return sorted(found, key=lambda each: -each[1].created_at)

    def _directories(self) -> list[RunDirectory]:
        return [RunDirectory(path) for path in sorted(self._runs.iterdir()) if path.is_dir()]

    def _remove_old(self) -> None:
        oldest = time.time() - KEEP_DAYS * 86400
        for directory in self._directories():
            files = [directory.path, *directory.path.iterdir()]
            if max(file.stat().st_mtime for file in files) < oldest and not directory.holder():
                shutil.rmtree(directory.path, ignore_errors=True)
