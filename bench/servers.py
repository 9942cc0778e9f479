"""The processes under test: started pinned to a core, measured, and ended, whatever happens."""

import asyncio
import ctypes
import os
import signal
import socket
import subprocess
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import aiohttp

from bench.upstream import HOST

START_S = 30.0
PR_SET_PDEATHSIG = 1
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
LIBC = ctypes.CDLL(None)


class NotStarted(Exception):
    """What a server said before it ended or while we waited."""


class Server:
    def __init__(self, port: int, pid: int) -> None:
        self.port = port
        self._pid = pid

    def cpu_s(self) -> float:
        """CPU time taken so far by the server and all its descendants, in user and kernel mode."""
        ticks = 0
        for stat in Path("/proc").glob("[0-9]*/stat"):
            with suppress(FileNotFoundError, ProcessLookupError):  # it ended just now
                # After the name, which may hold blanks: state ppid pgrp session ... utime stime
                fields = stat.read_text().rpartition(") ")[2].split()
                if int(fields[3]) == self._pid:
                    ticks += int(fields[11]) + int(fields[12])
        return ticks / TICKS_PER_S


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind((HOST, 0))
        return listener.getsockname()[1]


@asynccontextmanager
async def server(command: list[str], port: int, core: int | None) -> AsyncIterator[Server]:
    """Run a program in a session of its own until the block ends; it starts with /health.

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
            if not await _healthy(process, port):
                output.seek(0)
                said = output.read()[-2000:].decode(errors="replace")
                raise NotStarted(f"{' '.join(command[:3])} ... did not start:\n{said}")
            yield Server(port, process.pid)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


async def _healthy(process: subprocess.Popen[bytes], port: int) -> bool:
    with suppress(TimeoutError):
        async with asyncio.timeout(START_S), aiohttp.ClientSession() as session:
            while process.poll() is None:
                with suppress(aiohttp.ClientError):
                    async with session.get(f"http://{HOST}:{port}/health") as response:
                        if response.status == 200:
                            return True
                await asyncio.sleep(0.05)
    return False
