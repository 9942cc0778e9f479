"""What Kairos gained in the last hour, found out in a process of its own while this one serves.

The log of an hour is read and simulated several times, which takes up to minutes. So `kairos
gained` does it, one at a time: it runs only when nothing else wants the processor (SCHED_IDLE, or
the lowest priority), within bounds on memory and time, and knows no secret of this process. What it
found is kept for a while, so who looks again waits for nothing.
"""

import asyncio
import contextlib
import logging
import os
import signal
import sys
from collections.abc import AsyncIterator
from typing import Literal

import msgspec

from kairos.config import Settings
from kairos.live.ui.gained import Gained, WorkflowTimes

logger = logging.getLogger(__name__)

SINCE_S = 3600
FRESH_US = 600_000_000  # how long what was found is good enough
LIMIT_S = 900.0
_MEMORY_BYTES = 4 << 30  # of addresses, of which numpy alone takes 1 GB
_MOST_BYTES = 16 << 20  # of what it says
_SHOWN = 10  # workflows at either end
_SAID = 500  # characters of why it failed
_PASSED_ON = ("PATH", "PYTHONPATH", "HOME", "LANG", "LC_ALL", "VIRTUAL_ENV")

# no_log: nothing is known of the last hour; idle: nobody has asked yet, or it was stopped.
State = Literal["no_log", "idle", "running", "done", "failed"]


class GainsView(msgspec.Struct, frozen=True, kw_only=True):
    state: State
    done: float  # of what runs, the share
    problem: str | None  # why it failed
    found_at: int | None  # µs since the epoch
    gained: Gained | None  # of its workflows those at either end


class WorkflowGain(msgspec.Struct, frozen=True, kw_only=True):
    """One workflow, by what was found last; null: it is not among those."""

    others: list[str]  # what was asked about: policy, placement
    times: WorkflowTimes | None


class Gains:
    """Runs it, and keeps what it found. `run` goes on beside what serves."""

    def __init__(self, settings: Settings, *, since_s: int = SINCE_S) -> None:
        self._log_dir, self._since_s = settings.log_dir, since_s
        self.policy, self._placement = settings.policy, settings.placement  # that serve now
        self._wanted = asyncio.Event()
        self._process: asyncio.subprocess.Process | None = None
        self._done, self._problem = 0.0, ""
        self._found: Gained | None = None
        self._found_at: int | None = None
        self._by_workflow: dict[tuple[str, str], WorkflowTimes] = {}

    def view(self) -> GainsView:
        found = self._found
        if found is not None and len(found.by_workflow) > 2 * _SHOWN:
            ends = found.by_workflow[:_SHOWN] + found.by_workflow[-_SHOWN:]
            found = msgspec.structs.replace(found, by_workflow=ends)
        return GainsView(
            state=self._state(),
            done=self._done,
            problem=self._problem or None,
            found_at=self._found_at,
            gained=found,
        )

    def _state(self) -> State:
        if self._log_dir is None:
            return "no_log"
        if self._wanted.is_set():
            return "running"
        if self._problem:
            return "failed"
        return "idle" if self._found is None else "done"

    def workflow(self, tenant: str, workflow_id: str) -> WorkflowGain:
        others = [] if self._found is None else self._found.others
        return WorkflowGain(
            others=[f"{each.policy}, {each.placement}" for each in others],
            times=self._by_workflow.get((tenant, workflow_id)),
        )

    def start(self, now: int) -> None:
        """Find it out, unless that is under way, or was done a moment ago; `now` in µs."""
        is_fresh = self._found_at is not None and now < self._found_at + FRESH_US
        is_busy = self._wanted.is_set() or self._process is not None
        if self._log_dir is not None and not is_busy and not is_fresh:
            self._done, self._problem = 0.0, ""
            self._wanted.set()

    def stop(self) -> None:
        """Find out no more. What was found before stays."""
        self._wanted.clear()
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()

    async def run(self) -> None:
        """Until cancelled; whatever goes wrong is told to who asked."""
        while True:
            await self._wanted.wait()
            try:
                async with asyncio.timeout(LIMIT_S):
                    await self._find_out()
            except TimeoutError:
                self._problem = f"it took longer than {LIMIT_S / 60:.0f} minutes"
            except (OSError, ValueError, msgspec.MsgspecError) as error:
                logger.warning("what Kairos gained cannot be found out: %s", error)
                self._problem = str(error)[:_SAID]
            self._wanted.clear()

    async def _find_out(self) -> None:
        async with self._child() as process:
            assert process.stdout is not None
            assert process.stderr is not None
            said, problem = await asyncio.gather(
                _read(process.stdout, _MOST_BYTES), self._follow(process.stderr)
            )
            status = await process.wait()
        if not self._wanted.is_set():  # it was stopped
            return
        if status == 0:
            await self._take(said)
        elif status == -signal.SIGKILL:
            self._problem = "it was ended from outside: perhaps memory is short"
        else:
            self._problem = problem or f"it ended with status {status}"

    async def _take(self, said: bytes) -> None:
        """In a thread: there may be 20,000 workflows."""
        found = await asyncio.to_thread(msgspec.json.decode, said, type=Gained)
        self._found, self._found_at = found, found.ends_at
        self._by_workflow = {(each.tenant, each.id): each for each in found.by_workflow}

    async def _follow(self, stream: asyncio.StreamReader) -> str:
        """How far it is, a line each; the last that is no number is why it failed."""
        problem = ""
        while line := await stream.readline():
            said = line.decode(errors="replace").strip()
            try:
                self._done = min(1.0, max(0.0, float(said)))
            except ValueError:
                problem = said.removeprefix("kairos: ")[:_SAID] or problem
        return problem

    @contextlib.asynccontextmanager
    async def _child(self) -> AsyncIterator[asyncio.subprocess.Process]:
        assert self._log_dir is not None
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "kairos.cli.main", "gained", "--json", "--progress"),
            *("--log", self._log_dir, "--since", f"{self._since_s}s"),
            *("--policy", self.policy, "--placement", self._placement),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=_environment(),
            start_new_session=True,  # Ctrl-C is for this process, which ends the other
        )
        self._process = process
        _bound(process.pid)
        try:
            yield process
        finally:
            self._process = None
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.wait()


def _environment() -> dict[str, str]:
    """Without keys of engines, and on one core."""
    passed = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    return passed | {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}


def _bound(pid: int) -> None:
    """It takes only what is left over. Where the system knows no such bounds, it runs without."""
    with contextlib.suppress(OSError, AttributeError):
        os.setpriority(os.PRIO_PROCESS, pid, 19)
    with contextlib.suppress(OSError, AttributeError):
        os.sched_setscheduler(pid, os.SCHED_IDLE, os.sched_param(0))
    with contextlib.suppress(ImportError, OSError, ValueError, AttributeError):
        import resource

        resource.prlimit(pid, resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))


async def _read(stream: asyncio.StreamReader, most: int) -> bytes:
    """Raises ValueError: it says more than that."""
    said = bytearray()
    while part := await stream.read(1 << 16):
        said += part
        if len(said) > most:
            raise ValueError(f"it says more than {most} bytes")
    return bytes(said)
