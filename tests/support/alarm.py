"""The alarm of a test that takes too long: it fails under its name, on every event loop.

pytest-timeout's own alarm raises where the main thread stands. On uvloop that is the loop, which
reports what a signal's handler raises and goes on: the test waits for ever. So here what
`asyncio.Runner` runs is cancelled, be it a test or a fixture, and the failure shows what it waited
for. What swallows that too, and what blocks, gets the second alarm: the stacks, the name of the
test, and the end of the process.
"""

import asyncio
import faulthandler
import os
import signal
import sys
from io import StringIO

import pytest

GRACE_S = 60  # for a test that was told to end, and its fixtures


class Alarm:
    """Of one test, which has so many seconds."""

    def __init__(self, item, limit_s, grace_s=GRACE_S):
        self._item, self._limit_s, self._grace_s = item, limit_s, grace_s
        self._rang = False

    def set(self):
        signal.signal(signal.SIGALRM, self._ring)
        signal.setitimer(signal.ITIMER_REAL, self._limit_s, self._grace_s)

    def cancel(self):
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)

    def _ring(self, signum, frame):
        if self._rang:
            self._end()
        self._rang = True
        message = f"took longer than {self._limit_s:g} s"
        task = _running(frame)
        if task is None:
            pytest.fail(message)
        loop = task.get_loop()
        self._item.add_report_section("call", "tasks at the alarm", _stacks(loop))
        loop.call_soon_threadsafe(task.cancel, message)  # wakes the loop, too

    def _end(self):
        capture = self._item.config.pluginmanager.getplugin("capturemanager")
        capture.suspend_global_capture(in_=True)
        faulthandler.dump_traceback(sys.stderr)
        loop = asyncio._get_running_loop()
        print("" if loop is None else _stacks(loop), file=sys.stderr)
        limit_s = self._limit_s + self._grace_s
        print(f"TIMEOUT: {self._item.nodeid} did not end in {limit_s:g} s", file=sys.stderr)
        sys.stderr.flush()
        os._exit(1)


def _running(frame):
    """The task that the innermost `asyncio.Runner` of this stack runs; None where there is none."""
    while frame is not None:
        if frame.f_code is asyncio.Runner.run.__code__:
            return frame.f_locals.get("task")
        frame = frame.f_back
    return None


def _stacks(loop):
    said = StringIO()
    for task in asyncio.all_tasks(loop):
        task.print_stack(file=said)
    return said.getvalue()
