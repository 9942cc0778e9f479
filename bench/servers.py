"""The processes under test: started pinned to a core, measured, and ended, whatever happens."""

import asyncio
import ctypes
import os
import random
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import aiohttp

from bench.upstream import HOST

START_S = 30.0
PR_SET_PDEATHSIG = 1
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
LIBC = ctypes.CDLL(None)


class NotStarted(Exception):
    """What a server said before it ended or while we waited."""


class Server:
    def __init__(self, port: int, pid: int) -> None:
        self.port = port
        self.pid = pid

    def cpu_s(self) -> float:
        """CPU time taken so far by the server and all its descendants, in user and kernel mode."""
        return sum(self.cpu_s_by_process().values())

    def cpu_s_by_process(self) -> dict[int, float]:
        """The same of each process, by its id. All its threads count, in nanoseconds; those of its
        children that have ended, in ticks of 10 ms."""
        found = {}
        for pid, fields in self._stats():
            with suppress(OSError):  # it ended just now
                children_s = (int(fields[13]) + int(fields[14])) / TICKS_PER_S
                found[pid] = time.clock_gettime(_cpu_clock(pid)) + children_s
        return found

    def resident_bytes(self) -> int:
        """Memory that the server and all its descendants have now."""
        return sum(int(fields[21]) for _, fields in self._stats()) * PAGE_BYTES

    def _stats(self) -> Iterator[tuple[int, list[str]]]:
        for stat in Path("/proc").glob("[0-9]*/stat"):
            with suppress(FileNotFoundError, ProcessLookupError):  # it ended just now
                # After the name, which may hold blanks: state ppid pgrp session ... utime stime
                # cutime cstime ... vsize rss
                fields = stat.read_text().rpartition(") ")[2].split()
                if int(fields[3]) == self.pid:
                    yield int(stat.parent.name), fields


def _cpu_clock(pid: int) -> int:
    """The clock of the CPU time of all threads of another process, as Linux numbers them."""
    return (~pid << 3) | 2


def free_port() -> int:
    """One that nothing listens on, from below those that outgoing connections get: a client that
    asks for such a port before its server is there can end up connected to itself."""
    while True:
        port = random.randrange(15_000, 32_000)
        with suppress(OSError), socket.create_server((HOST, port)):
            return port


async def over_http(port: int) -> bool:
    """Whether a server says at /health that it is well."""
    with suppress(aiohttp.ClientError):
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"http://{HOST}:{port}/health") as response,
        ):
            return response.status == 200
    return False


async def listens(port: int) -> bool:
    """Whether a connection is taken there."""
    with suppress(OSError):
        _, writer = await asyncio.open_connection(HOST, port)
        writer.close()
        return True
    return False


@asynccontextmanager
async def server(
    command: list[str],
    port: int,
    core: int | None,
    is_up: Callable[[int], Awaitable[bool]] = over_http,
) -> AsyncIterator[Server]:
    """Run a program in a session of its own until the block ends; it starts when it is up.

    Raises:
        NotStarted
    """

    def before_exec() -> None:
        LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # our death, even by SIGKILL, is its end
        if core is not None:
            os.sched_setaffinity(0, {core})

    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=before_exec,  # noqa: PLW1509 - there are no threads here
        )
        try:
            if not await _started(process, port, is_up):
                output.seek(0)
                said = output.read()[-2000:].decode(errors="replace")
                raise NotStarted(f"{' '.join(command[:3])} ... did not start:\n{said}")
            yield Server(port, process.pid)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


async def _started(
    process: subprocess.Popen[bytes], port: int, is_up: Callable[[int], Awaitable[bool]]
) -> bool:
    with suppress(TimeoutError):
        async with asyncio.timeout(START_S):
            while process.poll() is None:
                if await is_up(port):
                    return True
                await asyncio.sleep(0.05)
    return False
