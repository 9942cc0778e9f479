"""Store of runs: a directory for each, accessible to its owner only.

It has the run's parameters (`run.json`), its results (`journal.sqlite`), and a lock of the process
that drives it. After a crash the run still has its last state, but its lock is free. Runs that were
not touched for `KEEP_DAYS` are removed when another begins: journals hold prompts and answers.
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

from kairos.core import SetupError
from kairos.host import atomic_write, try_lock
from kairos.settings import RetrievalSettings
from kairos.workflows.compile.flow_profile import FlowProfile
from kairos.workflows.execute.observation import Fallback

KEEP_DAYS = 30
_NAME_LENGTH = 32  # of a flow's name within an id
_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")

State = Literal["running", "stopped", "done", "cancelled"]


class RunForecast(msgspec.Struct, frozen=True):
    """Forecast of a run before it began: means, and the interval of its time."""

    time_s: float
    low_s: float
    high_s: float
    calls: int
    prompt_tokens: float
    completion_tokens: float
    cached_share: float


class RunRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Parameters and state of a run, so that another process can resume it.

    It has no API key, only the name of the variable that holds one.
    """

    id: str
    flow: str  # its name
    flow_path: str | None = None  # None: made in a program, which alone can resume it
    functions_path: str | None = None
    inputs: str | None = None
    out: str  # empty: the program that resumes it on this host has not given it yet
    engines: tuple[str, ...] = ()  # as given with --engine
    url: str | None = None
    host: str | None = None  # host file of devices that switch models
    api_key_env: str | None = None
    model: str | None = None
    revision: str = ""
    service_class: str = "batch"
    concurrency: int | None = None
    plan_digest: str = ""  # of the flow and its functions in the last session
    passes: dict[str, bool] = {}
    batches: dict[str, int] = {}  # measured efficient ones, by `workflows/compile/batches.py`
    learnt: FlowProfile | None = None  # of the flow, with `host`: calls are placed by it
    retrieval: RetrievalSettings | None = None  # its processors
    uses_cache: bool = True
    max_calls: int | None = None
    max_tokens: int | None = None
    bus: str | None = None  # of a run begun on Kafka by an older Kairos
    on: str | None = None  # Ray cluster of its partitions: local-ray, or ray://HEAD:PORT
    partitions: int | None = None  # None: one for each CPU of the cluster
    results: str | None = None  # URL of the PostgreSQL with its results; None: files here
    state: State = "running"
    detail: str = ""  # why it stopped
    created_at: int  # µs since the epoch
    changed_at: int
    figures: dict[str, int] = {}
    fallbacks: dict[str, Fallback] = {}  # by operator
    waits_for: str = ""  # why calls are not answered now
    took_s: float = 0.0  # of all sessions, until all rows had ended
    forecast: RunForecast | None = None
    written: dict[str, tuple[int, int]] = {}  # bytes, and mtime in ns, of each file that it wrote

    @property
    def has_failures(self) -> bool:
        return self.figures.get("failed", 0) > 0


class RunDirectory:
    """Files of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.journal = path / "journal.sqlite"
        self._lock, self._record = path / "lock", path / "run.json"

    def read(self) -> RunRecord:
        """Read the record. Raises SetupError: it does not exist, or is not readable."""
        try:
            return msgspec.json.decode(self._record.read_bytes(), type=RunRecord)
        except OSError as error:
            raise SetupError(f"{self._record} cannot be read: {error.strerror}") from None
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise SetupError(f"{self._record} is not a run of this Kairos: {error}") from None

    def write(self, record: RunRecord) -> None:
        """Write the record. Raises SetupError: it cannot be written."""
        with atomic_write(self._record, mode=0o600) as file:
            file.write(msgspec.json.format(msgspec.json.encode(record)))

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the run's lock while the block runs. Raises SetupError: another process holds it."""
        with try_lock(self._lock) as is_held:
            if not is_held:
                raise SetupError(
                    f"run {self.path.name} runs in another process (see: kairos runs list)"
                )
            yield

    def holder(self) -> int | None:
        """Return the process that drives the run; None if no process does."""
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
        """Ask the process that drives the run to stop, and wait until it has.

        Raises:
            SetupError: it has not stopped within `limit_s`.
        """
        if (process := self.holder()) is None:
            return
        os.kill(process, signal.SIGTERM)
        until = time.monotonic() + limit_s
        while self.holder() is not None:
            if time.monotonic() > until:
                raise SetupError(f"process {process} is still finishing its calls; try again later")
            time.sleep(0.05)

    def forget_results(self) -> None:
        for file in self.path.glob("journal.sqlite*"):
            file.unlink()


class RunStore:
    def __init__(self, root: Path) -> None:
        """Open the store; create it if missing. Raises SetupError: the directory cannot be used."""
        self.root, self.cache, self._runs = root, root / "cache.sqlite", root / "runs"
        try:
            for path in (root, self._runs):
                path.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise SetupError(f"{root} cannot hold runs: {error.strerror}") from None

    def new_id(self, flow: str) -> str:
        return f"{flow[:_NAME_LENGTH]}-{secrets.token_hex(4)}"

    def create(self, record: RunRecord) -> RunDirectory:
        """Make the directory of a new run, and remove old runs.

        Raises:
            SetupError: the run's id is not valid.
        """
        if not _ID.fullmatch(record.id):
            raise SetupError(f"'{record.id[:64]}' is not a valid id of a run")
        self._remove_old()
        directory = RunDirectory(self._runs / record.id)
        directory.path.mkdir(mode=0o700)
        directory.write(record)
        return directory

    def find(self, name: str) -> RunDirectory:
        """Return the run with this id, or with an id of this unique prefix.

        Raises:
            SetupError: no run matches, or several do.
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
        """Return the run as `find` does; None if no run matches. Raises SetupError: several do."""
        found = [each for each in self._directories() if each.path.name.startswith(name)]
        return self.find(name) if found else None

    def all(self) -> list[tuple[RunDirectory, RunRecord]]:
        """Return the runs whose record can be read, the latest first."""
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
