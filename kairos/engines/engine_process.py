"""An engine as a child process, which never outlives the process that started it.

Each child leads its own session, so that it can be killed as a whole and a Ctrl-C in the terminal
reaches only the parent. Three things end it: `end_all`; the parent's death, even by SIGKILL
(`kairos.engines.child`); its own failure. Its descendants end with it.
"""

import asyncio
import os
import signal
import sys
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress

from kairos.core import SetupError
from kairos.host import PIPE, STDOUT, start_child

GRACE_S = 5.0  # vLLM takes two to leave in order
LAST_LINES = 20
READY = b"ready "
_PART_BYTES = 64 << 10
_LINE_BYTES = 4 << 10  # that are kept of a line


class EngineProcess:
    """An engine process, and the reader of its output: a full pipe would block it."""

    def __init__(
        self, name: str, process: asyncio.subprocess.Process, on_failure: Callable[[str], None]
    ) -> None:
        self.name = name
        self._process = process
        self._on_failure = on_failure
        self._url: str | None = None
        self._started = asyncio.Event()  # or failed to
        self._said: deque[bytes] = deque(maxlen=LAST_LINES)
        self._is_gone = self._is_wanted_gone = False
        self.following = asyncio.create_task(self._follow())  # to its end

    async def _follow(self) -> None:
        reading = asyncio.create_task(self._read_output())
        await self._process.wait()
        self.signal(signal.SIGKILL)  # to what it leaves behind, which holds our pipe open
        self._is_gone = True
        await reading
        self._started.set()
        if self._url is not None and not self._is_wanted_gone:
            self._on_failure(f"{self.name} has ended: {self._last_words()}")

    async def _read_output(self) -> None:
        """Read the output; a line may be longer than a `StreamReader` can return."""
        assert self._process.stdout is not None
        rest = b""
        while part := await self._process.stdout.read(_PART_BYTES):
            *lines, rest = (rest + part).split(b"\n")
            rest = rest[-_PART_BYTES:]
            for line in lines:
                self._add_line(line + b"\n")
        self._add_line(rest)

    def _add_line(self, line: bytes) -> None:
        if line.startswith(READY):
            self._url = line.removeprefix(READY).decode().strip()
            self._started.set()
        elif line:
            self._said.append(line[-_LINE_BYTES:])

    def _last_words(self) -> str:
        return b"".join(self._said).decode(errors="replace").strip() or "it said nothing"

    async def url(self, limit_s: float) -> str:
        """Return the engine's URL once it serves.

        Raises SetupError: It ended, or has not become ready in time.
        """
        try:
            async with asyncio.timeout(limit_s):
                await self._started.wait()
        except TimeoutError:
            raise SetupError(f"{self.name} is not ready after {limit_s:.0f} s") from None
        if self._url is None:
            raise SetupError(f"{self.name} ended while it was starting: {self._last_words()}")
        return self._url

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process group, which can outlive its leader."""
        if not self._is_gone:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)

    def terminate(self) -> None:
        """Ask the process to end."""
        self._is_wanted_gone = True
        self.signal(signal.SIGTERM)


async def start_process(
    name: str,
    module: str,
    arguments: Sequence[str],
    on_failure: Callable[[str], None] = lambda _: None,
) -> EngineProcess:
    """Start a module as a program with these arguments. It prints `ready URL` once it serves.

    `on_failure` receives a message if it ends after that without being asked to.
    """
    process = await start_child(
        *(sys.executable, "-m", "kairos.engines.child", module, *arguments),
        stdin=PIPE,
        stdout=PIPE,
        stderr=STDOUT,
        start_new_session=True,
    )
    return EngineProcess(name, process, on_failure)


async def end_all(processes: Sequence[EngineProcess]) -> None:
    """Ask the processes to end, and kill the remaining ones after a grace period.

    None is left, even if this is cancelled.
    """
    for each in processes:
        each.terminate()
    try:
        with suppress(TimeoutError):
            await asyncio.wait_for(_all_ended(processes), GRACE_S)
    finally:  # a second cancellation, too, cuts the grace short
        for each in processes:
            each.signal(signal.SIGKILL)
        await _all_ended(processes)


async def _all_ended(processes: Sequence[EngineProcess]) -> None:
    if processes:
        # Unlike `gather`, it cancels nothing when it is cancelled.
        await asyncio.wait([each.following for each in processes])
