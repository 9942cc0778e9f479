"""Processes that begin as copies of this one, so that nothing is imported again.

The parent may run an event loop, of asyncio, but no threads. A copy runs none of the parent's code
to its end: it never returns from `fork`, closes no object of the parent's, and ends by `os._exit`.
"""

import asyncio
import gc
import os
import signal
import sys
from collections.abc import Callable, Collection
from pathlib import Path

_STANDARD = {0, 1, 2}


class ForkedProcess:
    """A child of this process, as its parent sees it."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None  # minus the signal that ended it
        self._ended = asyncio.Event()
        self._file = os.pidfd_open(pid)
        asyncio.get_running_loop().add_reader(self._file, self._reap)

    async def wait(self) -> int:
        """Return how it ended, once it has."""
        await self._ended.wait()
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send it the signal, unless it has ended."""
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
    """Run `main` in a copy of this process, which ends with the status that it returns. The copy
    has no open files but `files`, and standard output and error. `name`: as the system knows it."""
    sys.stdout.flush()
    sys.stderr.flush()
    gc.collect()  # what is left over must not be finalized by the copy: its files are of this one
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
    """Never returns."""
    status = 1
    try:
        signal.set_wakeup_fd(-1)  # which leads to the parent's loop
        for number in (signal.SIGTERM, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        for number in (signal.SIGINT, signal.SIGHUP):  # a terminal sends them to all; one acts
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
            try:
                os.close(each)
            except OSError:  # it was that of the list itself
                continue
