"""Child processes forked from this one, so that nothing is imported again.

The parent may run an asyncio event loop, but no threads. A child never returns from `fork`, closes
no object of the parent's, and ends by `os._exit`.
"""

import asyncio
import contextlib
import gc
import os
import signal
import sys
from collections.abc import Callable, Collection
from pathlib import Path

_STANDARD = {0, 1, 2}


class ForkedProcess:
    """A child process, as its parent sees it."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None  # minus the signal that ended it
        self._ended = asyncio.Event()
        self._file = os.pidfd_open(pid)
        asyncio.get_running_loop().add_reader(self._file, self._reap)

    async def wait(self) -> int:
        """Wait for the end; return the exit status, or minus the signal that ended it."""
        await self._ended.wait()
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send the process a signal, unless it has ended."""
        if self.returncode is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _reap(self) -> None:
        asyncio.get_running_loop().remove_reader(self._file)
        os.close(self._file)
        _, status = os.waitpid(self.pid, 0)
        self.returncode = os.waitstatus_to_exitcode(status)
        self._ended.set()


def fork(main: Callable[[], int], name: str, files: Collection[int]) -> ForkedProcess:
    """Fork a child that runs `main` and exits with the status that it returns.

    The child has no open files but `files`, and standard output and error. `name` is its process
    name.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    gc.collect()  # the child must not finalize garbage: its file descriptors are the parent's
    gc.freeze()
    every = signal.valid_signals()
    masked = signal.pthread_sigmask(signal.SIG_BLOCK, every)
    try:
        pid = os.fork()
        if pid == 0:
            _run_copy(main, name, files, masked)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, masked)
    return ForkedProcess(pid)


def _run_copy(
    main: Callable[[], int], name: str, files: Collection[int], masked: Collection[int]
) -> None:
    """Run `main` in the child, and exit."""
    status = 1
    try:
        signal.set_wakeup_fd(-1)  # it belongs to the parent's loop
        for number in (signal.SIGTERM, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        for number in (signal.SIGINT, signal.SIGHUP):  # a terminal sends them to all
            signal.signal(number, signal.SIG_IGN)
        _close_all_but({*_STANDARD, *files})
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.close(nothing)
        Path("/proc/self/comm").write_text(name, encoding="ascii")
        signal.pthread_sigmask(signal.SIG_SETMASK, masked)
        status = main()
    except BaseException:  # noqa: BLE001 - nobody else would show it
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _close_all_but(files: Collection[int]) -> None:
    for each in [int(entry.name) for entry in Path("/proc/self/fd").iterdir()]:
        if each not in files:
            with contextlib.suppress(OSError):  # it was that of the list itself
                os.close(each)
