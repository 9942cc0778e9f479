"""`python -m bench.sampled FILE ARGUMENTS...`: the `kairos` command, with its main thread sampled.

A timer that runs with the main thread's CPU time interrupts it at every tick of the kernel's, some
4 ms, and the part (`bench/parts.py`) that it is in is counted. So a thread that sleeps counts
nothing, and time in the kernel or in C counts for who called it. What the main thread took in all,
and what the other threads of the process did, is exact. On SIGUSR1 what was counted since the last
one is written to FILE.
"""

import ctypes
import signal
import sys
import threading
import time
from pathlib import Path
from types import FrameType

import msgspec

from bench.parts import part_of

INTERVAL_NS = 1_000_000  # the kernel looks at its ticks only
_SIGEV_THREAD_ID = 4


class Counted(msgspec.Struct):
    """CPU time in nanoseconds, and how often the main thread was seen where."""

    main_thread_ns: int
    other_threads_ns: int
    parts: dict[str, int]
    places: dict[str, int]  # of what no part names


class _SigEvent(ctypes.Structure):
    _fields_ = (
        ("value", ctypes.c_void_p),
        ("signo", ctypes.c_int),
        ("notify", ctypes.c_int),
        ("thread_id", ctypes.c_int),
        ("padding", ctypes.c_char * 44),
    )


class _TimerSpec(ctypes.Structure):
    _fields_ = (
        ("interval_s", ctypes.c_long),
        ("interval_ns", ctypes.c_long),
        ("value_s", ctypes.c_long),
        ("value_ns", ctypes.c_long),
    )


class Sampler:
    """Counts from `start` on."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._forget()

    def _forget(self) -> None:
        self._parts: dict[str, int] = {}
        self._places: dict[str, int] = {}
        self._began_ns = _taken_ns()

    def start(self) -> None:
        signal.signal(signal.SIGPROF, self._sample)
        signal.signal(signal.SIGUSR1, self._write)
        # A timer for this thread alone. Python has only those that any thread may get.
        libc = ctypes.CDLL(None, use_errno=True)
        event = _SigEvent(None, signal.SIGPROF, _SIGEV_THREAD_ID, threading.get_native_id())
        timer = ctypes.c_void_p()
        spec = _TimerSpec(0, INTERVAL_NS, 0, INTERVAL_NS)
        if libc.timer_create(
            time.CLOCK_THREAD_CPUTIME_ID, ctypes.byref(event), ctypes.byref(timer)
        ):
            raise OSError(ctypes.get_errno(), "timer_create")
        if libc.timer_settime(timer, 0, ctypes.byref(spec), None):
            raise OSError(ctypes.get_errno(), "timer_settime")

    def _sample(self, _: int, frame: FrameType | None) -> None:
        part, place = part_of(frame)
        self._parts[part] = self._parts.get(part, 0) + 1
        if place is not None:
            self._places[place] = self._places.get(place, 0) + 1

    def _write(self, _: int, __: FrameType | None) -> None:
        main_ns, others_ns = (
            now - began for now, began in zip(_taken_ns(), self._began_ns, strict=True)
        )
        counted = Counted(main_ns, others_ns, self._parts, self._places)
        written = self._path.with_suffix(".part")
        written.write_bytes(msgspec.json.encode(counted))
        written.replace(self._path)
        self._forget()


def _taken_ns() -> tuple[int, int]:
    """By the main thread, which calls this, and by all others."""
    main_ns = time.thread_time_ns()
    return main_ns, time.process_time_ns() - main_ns


def main() -> None:
    path, *arguments = sys.argv[1:]
    sys.argv = ["kairos", *arguments]
    from kairos.cli.main import main as kairos

    Sampler(Path(path)).start()
    kairos()


if __name__ == "__main__":
    main()
