"""Engines as child processes, which never outlive what started them.

Each child leads a session of its own, so that it can be ended whole and a Ctrl-C in the terminal
reaches only us. Three things end it: leaving `start_engines`, in whatever way; our death, even by
SIGKILL (`kairos.demo.child`); its own failure to start.
"""

import asyncio
import os
import signal
import sys
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Literal

from kairos.errors import SetupError

Kind = Literal["llama", "sim"]

MODULES: dict[Kind, str] = {"llama": "kairos.live.llama", "sim": "kairos.sim.standin"}
TRACES = Path(__file__).parents[2] / "traces"
SCRIPT = TRACES / "standin.json"
LENGTHS = TRACES / "demo-smollm2.jsonl.gz"  # this demo, on the real model
START_S = 60.0
GRACE_S = 3.0
LAST_LINES = 20
READY = b"ready "


class _Child:
    """One engine process, and the reader of all that it prints: a full pipe would stop it."""

    def __init__(self, name: str, process: asyncio.subprocess.Process) -> None:
        self.name = name
        self._process = process
        self._url: str | None = None
        self._started = asyncio.Event()  # or failed to
        self._said: deque[bytes] = deque(maxlen=LAST_LINES)
        self._reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            if line.startswith(READY):
                self._url = line.removeprefix(READY).decode().strip()
                self._started.set()
            else:
                self._said.append(line)
        self._started.set()

    async def url(self) -> str:
        """Where it serves, once it does.

        Raises:
            SetupError: it ended, or has not become ready in time.
        """
        try:
            async with asyncio.timeout(START_S):
                await self._started.wait()
        except TimeoutError:
            raise SetupError(f"{self.name} is not ready after {START_S:.0f} s") from None
        if self._url is None:
            said = b"".join(self._said).decode(errors="replace").strip() or "it said nothing"
            raise SetupError(f"{self.name} ended while it was starting: {said}")
        return self._url

    def signal(self, number: signal.Signals) -> None:
        """To the whole group, which can outlive its leader."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    async def ended(self) -> None:
        await self._process.wait()
        await asyncio.wait([self._reading])  # unlike `await`, cancels nothing when cancelled


@asynccontextmanager
async def start_engines(
    kind: Kind,
    count: int,
    *,
    options: Sequence[str] = (),
    on_progress: Callable[[str], None] = lambda _: None,
) -> AsyncIterator[list[str]]:
    """Start engines on free loopback ports; the block runs once all of them serve.

    Args:
        options: further arguments of the engine's module.
        on_progress: told in a line whenever an engine starts or is ready.

    Raises:
        SetupError: an engine ended or hung while starting; what it said last is in the message.
    """
    children: list[_Child] = []
    try:
        for number in range(1, count + 1):
            children.append(await _start(kind, f"{kind} engine {number}", options))
            on_progress(f"{children[-1].name} is starting")
        urls = []
        for child in children:
            urls.append(await child.url())
            on_progress(f"{child.name} is ready at {urls[-1]}")
        yield urls
    finally:
        await _end_all(children)


async def _start(kind: Kind, name: str, options: Sequence[str]) -> _Child:
    said = {"--script": SCRIPT, "--lengths": LENGTHS} if kind == "sim" else {}
    files = [word for name, path in said.items() if path.is_file() for word in (name, str(path))]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "kairos.demo.child", MODULES[kind], *files, *options),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        start_new_session=True,
    )
    return _Child(name, process)


async def _end_all(children: list[_Child]) -> None:
    for child in children:
        child.signal(signal.SIGTERM)
    try:
        with suppress(TimeoutError):
            async with asyncio.timeout(GRACE_S):
                await _all_ended(children)
    finally:  # a second cancellation, too, cuts the grace short
        for child in children:
            child.signal(signal.SIGKILL)
        await _all_ended(children)


async def _all_ended(children: list[_Child]) -> None:
    await asyncio.gather(*(child.ended() for child in children))
