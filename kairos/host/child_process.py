"""Start programs from an event loop, with no Python between fork and exec.

uvloop's own subprocesses run Python's at-fork hooks in the child, before it becomes the program. In
a process with threads that is unsafe: locks that another thread held stay locked, and an object
that is collected there may wait for threads that the child does not have (a Kafka producer crashed
it). `subprocess.Popen` does everything between fork and exec in C.
"""

import asyncio
import contextlib
import os
import subprocess
import threading
from asyncio.base_subprocess import BaseSubprocessTransport
from asyncio.subprocess import Process, SubprocessStreamProtocol
from typing import IO, Any

PIPE, DEVNULL, STDOUT = subprocess.PIPE, subprocess.DEVNULL, subprocess.STDOUT
_LINE_BYTES = 1 << 16  # as asyncio's streams

Stream = int | IO[Any] | None


async def start_child(
    program: str,
    *arguments: str,
    stdin: Stream = None,
    stdout: Stream = None,
    stderr: Stream = None,
    limit: int = _LINE_BYTES,
    **options: Any,
) -> Process:
    """Start a program on any event loop, as `asyncio.create_subprocess_exec` does.

    `options` go to `subprocess.Popen`; a `preexec_fn` would be Python in the child. `limit`: bytes
    of the longest line that `readline` returns. Raises OSError: The program does not exist, or
    cannot be run.
    """
    loop = asyncio.get_running_loop()
    protocol = SubprocessStreamProtocol(limit=limit, loop=loop)
    connected: asyncio.Future[None] = loop.create_future()
    command = (program, *arguments)
    transport = _Child(
        loop, protocol, command, False, stdin, stdout, stderr, 0, connected, **options
    )
    try:
        await connected
    except BaseException:
        transport.close()
        await transport._wait()  # for the process that was killed
        raise
    return Process(transport, protocol, loop)


class _Child(BaseSubprocessTransport):
    """A subprocess transport of asyncio that works on any loop.

    The end of the program makes a file descriptor readable (Linux 5.3); without that, a thread
    waits for it.
    """

    def _start(
        self,
        args: Any,
        shell: bool,
        stdin: Stream,
        stdout: Stream,
        stderr: Stream,
        bufsize: int,
        **kwargs: Any,
    ) -> None:
        program = subprocess.Popen(  # noqa: S603  (a command as a list; the caller's)
            args, bufsize, stdin=stdin, stdout=stdout, stderr=stderr, shell=shell, **kwargs
        )
        self._proc = program
        try:
            descriptor = os.pidfd_open(program.pid)
        except (AttributeError, OSError):
            threading.Thread(target=self._await_end, args=(program,), daemon=True).start()
        else:
            self._loop.add_reader(descriptor, self._on_end, program, descriptor)

    def _on_end(self, program: subprocess.Popen[Any], descriptor: int) -> None:
        self._loop.remove_reader(descriptor)
        os.close(descriptor)
        self._process_exited(program.wait())

    def _await_end(self, program: subprocess.Popen[Any]) -> None:
        status = program.wait()
        with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile
            self._loop.call_soon_threadsafe(self._process_exited, status)
