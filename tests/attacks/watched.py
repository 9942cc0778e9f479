"""Kairos's command with a timer in its event loop: `python -m tests.attacks.watched FILE serve`.

The file holds two doubles, which another process may set to zero: how late the loop was at the
worst, in seconds, and how often it has ticked.
"""

import asyncio
import mmap
import struct
import sys
import time
from pathlib import Path

TICK_S = 0.01
_FIGURES = struct.Struct("dd")


class LoopDelay:
    """The figures of one process, seen by itself and by the one that measures."""

    def __init__(self, path):
        Path(path).touch()
        with Path(path).open("r+b") as file:
            file.truncate(_FIGURES.size)
            self._shared = mmap.mmap(file.fileno(), _FIGURES.size)

    def forget(self):
        _FIGURES.pack_into(self._shared, 0, 0.0, 0.0)

    def read(self):
        """The longest delay in seconds, and the ticks so far."""
        worst_s, ticks = _FIGURES.unpack_from(self._shared, 0)
        return worst_s, int(ticks)

    async def watch(self):
        """Tick until cancelled."""
        while True:
            due_s = time.monotonic() + TICK_S
            await asyncio.sleep(TICK_S)
            worst_s, ticks = self.read()
            _FIGURES.pack_into(
                self._shared, 0, max(worst_s, time.monotonic() - due_s), float(ticks + 1)
            )


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
    from kairos.cli.main import main as command

    _WatchedRunner.delay = LoopDelay(sys.argv.pop(1))
    asyncio.Runner = _WatchedRunner
    command()


if __name__ == "__main__":
    main()
