"""Engines as child processes, which never outlive what started them.

Each child leads a session of its own, so that it can be ended whole and a Ctrl-C in the terminal
reaches only us. Three things end it: leaving `start_engines`, in whatever way; our death, even by
SIGKILL (`kairos.demo.child`); its own failure. Whatever it has started ends with it.
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

Kind = Literal["llama", "sim", "vllm"]

MODULES: dict[Kind, str] = {
    "llama": "kairos.live.engines.llama",
    "sim": "kairos.standin.server",
    "vllm": "kairos.live.engines.vllm",
}
TRACES = Path(__file__).parents[2] / "traces"
SCRIPT = TRACES / "standin.json"
LENGTHS = TRACES / "demo-smollm2.jsonl.gz"  # this demo, on the real model
START_S: dict[Kind, float] = {"llama": 60, "sim": 60, "vllm": 300}  # on a busy machine
GRACE_S = 5.0  # vLLM takes two to leave in order
LAST_LINES = 20
READY = b"ready "


class _Child:
    """One engine process, and the reader of all that it prints: a full pipe would stop it."""

    def __init__(
        self,
        name: str,
        process: asyncio.subprocess.Process,
        on_failure: Callable[[str], None],
    ) -> None:
        self.name = name
        self._process = process
        self._on_failure = on_failure
        self._url: str | None = None
        self._started = asyncio.Event()  # or failed to
        self._said: deque[bytes] = deque(maxlen=LAST_LINES)
        self._is_gone = self._is_wanted_gone = False
        self._following = asyncio.create_task(self._follow())

    async def _follow(self) -> None:
        reading = asyncio.create_task(self._read())
        await self._process.wait()
        self.signal(signal.SIGKILL)  # to what it leaves behind, which holds our pipe open
        self._is_gone = True
        await reading
        self._started.set()
        if self._url is not None and not self._is_wanted_gone:
            self._on_failure(f"{self.name} has ended: {self._last_words()}")

    async def _read(self) -> None:
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            if line.startswith(READY):
                self._url = line.removeprefix(READY).decode().strip()
                self._started.set()
            else:
                self._said.append(line)

    def _last_words(self) -> str:
        return b"".join(self._said).decode(errors="replace").strip() or "it said nothing"

    async def url(self, limit_s: float) -> str:
        """Where it serves, once it does.

        Raises:
            SetupError: it ended, or has not become ready in time.
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
        """To the whole group, which can outlive its leader."""
        if not self._is_gone:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)

    def end(self) -> None:
        """Ask it to end."""
        self._is_wanted_gone = True
        self.signal(signal.SIGTERM)

    async def ended(self) -> None:
        await asyncio.wait([self._following])  # unlike `await`, cancels nothing when cancelled


@asynccontextmanager
async def start_engines(
    kind: Kind,
    count: int,
    *,
    options: Sequence[str] = (),
    on_progress: Callable[[str], None] = lambda _: None,
    on_failure: Callable[[str], None] = lambda _: None,
) -> AsyncIterator[list[str]]:
    """Start engines on free loopback ports; the block runs once all of them serve.

    Args:
        options: further arguments of the engine's module, such as `--model mid`; vLLM's own too.
        on_progress: told in a line whenever an engine starts or is ready.
        on_failure: told in a line when one that was ready has ended; the others run on.

    Raises:
        SetupError: an engine ended or hung while starting; what it said last is in the message.
    """
    children: list[_Child] = []
    try:
        for number in range(1, count + 1):
            process = await _process(kind, number, options)
            children.append(_Child(f"{kind} engine {number}", process, on_failure))
            on_progress(f"{children[-1].name} is starting")
        urls = []
        for child in children:
            urls.append(await child.url(START_S[kind]))
            on_progress(f"{child.name} is ready at {urls[-1]}")
        yield urls
    finally:
        await _end_all(children)


async def _process(kind: Kind, number: int, options: Sequence[str]) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "kairos.demo.child", MODULES[kind]),
        *(*_arguments(kind, number), *options),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        start_new_session=True,
    )


def _arguments(kind: Kind, number: int) -> list[str]:
    if kind == "vllm":
        return ["--number", str(number)]
    files = {"--script": SCRIPT, "--lengths": LENGTHS} if kind == "sim" else {}
    return [word for name, path in files.items() if path.is_file() for word in (name, str(path))]


async def _end_all(children: list[_Child]) -> None:
    for child in children:
        child.end()
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
