"""The clock of the running event loop, which a test moves so that timeouts take no time."""

import asyncio
import contextlib

_TURNS = 10  # of the loop: a timer that is due, the task that it wakes, and what that one does


class LoopClock:
    def __init__(self, time):
        self._time, self._moved_s = time, 0.0

    def time(self):
        return self._time() + self._moved_s

    def move(self, seconds):
        """Make what is due by then due in the loop's next turn."""
        self._moved_s += seconds

    async def passes(self, seconds, steps=10):
        """Move in steps, and let the loop do what is due at each."""
        for _ in range(steps):
            self.move(seconds / steps)
            await turns()


async def turns(number=_TURNS):
    """Let the loop turn: what needs no time, no socket and no other thread is done then."""
    for _ in range(number):
        await asyncio.sleep(0)


@contextlib.contextmanager
def moved_clock(*, stands=False):
    """Yield the running loop's clock.

    `stands`: only moves advance it, and no timer fires before. By default real time adds to them.
    """
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    clock = LoopClock((lambda: began_s) if stands else loop.time)
    loop.time = clock.time
    try:
        yield clock
    finally:
        del loop.time
