"""Kairos's command with a timer in its event loop: `python -m tests.attacks.watched FILE serve`.

The file holds three doubles, which another process may set to zero: how late the loop was at the
worst, in seconds; the same without the time in which its thread waited for a core; and how often
it has ticked.
"""

import asyncio
import mmap
import struct
import sys
import time
from pathlib import Path

TICK_S = 0.01
_FIGURES = struct.Struct("ddd")


class LoopDelay:
    """The figures of one process, seen by itself and by the one that measures."""

    def __init__(self, path):
        Path(path).touch()
        with Path(path).open("r+b") as file:
            file.truncate(_FIGURES.size)
            self._shared = mmap.mmap(file.fileno(), _FIGURES.size)

    def forget(self):
        _FIGURES.pack_into(self._shared, 0, 0.0, 0.0, 0.0)

    def read(self):
        """Return the longest delay in seconds, the longest of its own, and the ticks so far."""
        return _FIGURES.unpack_from(self._shared, 0)

    async def watch(self):
        """Tick until cancelled."""
        while True:
            due_s, waited_s = time.monotonic() + TICK_S, _waited_s()
            await asyncio.sleep(TICK_S)
            late_s = max(0.0, time.monotonic() - due_s)
            own_s = max(0.0, late_s - (_waited_s() - waited_s))
            worst_s, worst_own_s, ticks = self.read()
            figures = max(worst_s, late_s), max(worst_own_s, own_s), ticks + 1
            _FIGURES.pack_into(self._shared, 0, *figures)


def _waited_s():
    """Return how long the loop's thread has waited for a core, in seconds."""
    return int(Path("/proc/thread-self/schedstat").read_text().split()[1]) / 1e9


class _WatchedRunner(asyncio.Runner):
    delay: LoopDelay

    def run(self, main, **options):
        async def watched():
            watching = asyncio.create_task(self.delay.watch())
            try:
                return await main
            finally:
                watching.cancel()

        return super().run(watched(), **options)


def main():
    from tests.support.cli.command import main as command

    _WatchedRunner.delay = LoopDelay(sys.argv.pop(1))
    asyncio.Runner = _WatchedRunner
    command()


if __name__ == "__main__":
    main()
