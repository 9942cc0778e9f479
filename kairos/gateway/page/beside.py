"""Kairos commands in background processes, which use only idle resources.

They run only when nothing else wants the processor (SCHED_IDLE, or the lowest priority), within
bounds on memory and time, and get no secret of this process.
"""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable

from kairos.core import Unavailable
from kairos.host import DEVNULL, PIPE, start_child

_MEMORY_BYTES = 4 << 30  # of addresses, of which numpy alone takes 1 GB
_MOST_BYTES = 16 << 20  # of output
_SAID = 500  # characters of the reason of a failure
_PASSED_ON = ("PATH", "PYTHONPATH", "HOME", "LANG", "LC_ALL", "VIRTUAL_ENV", "TZ")


class NotWorkedOut(Unavailable):
    """A background command failed, timed out, or was stopped."""

    code = "not_worked_out"


class Beside:
    """Runner of background commands, one at a time; `pid` is that of the running one."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._is_taken = self._is_stopped = False  # from before its process is there
        self._process: asyncio.subprocess.Process | None = None

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    def stop(self) -> None:
        """Stop the command, even before its process exists; its caller gets an error."""
        self._is_stopped = self._is_taken
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()

    async def run(self, *arguments: str, tell: Callable[[float], None] = lambda _: None) -> bytes:
        """Return the output of `kairos ARGUMENTS`. `tell` receives numbers from its stderr.

        Raises NotWorkedOut: The command failed; the text says why.
        """
        try:
            async with asyncio.timeout(self._limit_s), self._child(arguments) as process:
                assert process.stdout is not None
                assert process.stderr is not None
                said, problem = await asyncio.gather(
                    _read(process.stdout), _follow(process.stderr, tell)
                )
                status = await process.wait()
        except TimeoutError:
            raise NotWorkedOut(f"it took longer than {self._limit_s:.0f} s") from None
        except (OSError, ValueError) as error:
            raise NotWorkedOut(str(error)[:_SAID]) from None
        if status == -signal.SIGKILL:
            raise NotWorkedOut("it was killed: perhaps memory is short")
        if status:
            raise NotWorkedOut(problem or f"it ended with status {status}")
        return said

    @contextlib.asynccontextmanager
    async def _child(self, arguments: tuple[str, ...]) -> AsyncIterator[asyncio.subprocess.Process]:
        if self._is_taken:
            raise NotWorkedOut("another request is being computed: try again in a moment")
        self._is_taken, self._is_stopped = True, False
        try:
            self._process = process = await start_child(
                *(sys.executable, "-m", "kairos.cli.main", *arguments),
                stdin=DEVNULL,
                stdout=PIPE,
                stderr=PIPE,
                env=_environment(),
                start_new_session=True,  # Ctrl-C is for this process, which ends the other
            )
            _bound(process.pid)
            if self._is_stopped:
                process.kill()
            try:
                yield process
            finally:
                self._process = None
                if process.returncode is None:
                    with contextlib.suppress(ProcessLookupError):
                        process.kill()
                    await process.wait()
        finally:
            self._is_taken = False


async def _follow(stream: asyncio.StreamReader, tell: Callable[[float], None]) -> str:
    """Read progress from stderr; return the last line that is not a number: the error."""
    problem = ""
    while line := await stream.readline():
        said = line.decode(errors="replace").strip()
        try:
            tell(min(1.0, max(0.0, float(said))))
        except ValueError:
            problem = said.removeprefix("kairos: ")[:_SAID] or problem
    return problem


def _environment() -> dict[str, str]:
    """Return an environment without engines' keys, for one core."""
    passed = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    return passed | {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}


def _bound(pid: int) -> None:
    """Bound a process to idle resources, as far as the system supports that."""
    with contextlib.suppress(OSError, AttributeError):
        os.setpriority(os.PRIO_PROCESS, pid, 19)
    with contextlib.suppress(OSError, AttributeError):
        os.sched_setscheduler(pid, os.SCHED_IDLE, os.sched_param(0))
    with contextlib.suppress(ImportError, OSError, ValueError, AttributeError):
        import resource

        resource.prlimit(pid, resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))


async def _read(stream: asyncio.StreamReader) -> bytes:
    """Read all of a stream. Raises ValueError: It exceeds the limit."""
    said = bytearray()
    while part := await stream.read(1 << 16):
        said += part
        if len(said) > _MOST_BYTES:
            raise ValueError(f"its output exceeds {_MOST_BYTES} bytes")
    return bytes(said)
