"""Virtual time."""

import heapq
from collections.abc import Callable
from itertools import count


class VirtualClock:
    """Runs callbacks in time order; those due at the same µs run in the order they were set."""

    def __init__(self) -> None:
        self._now = 0
        self._seq = count()
        self._timers: list[tuple[int, int, Callable[[], None]]] = []
        self._stopped = False

    def now(self) -> int:
        return self._now

    def call_at(self, at: int, callback: Callable[[], None]) -> None:
        assert at >= self._now, f"{at} is in the past, it is {self._now}"
        heapq.heappush(self._timers, (at, next(self._seq), callback))

    def stop(self) -> None:
        """Run no callback any more; the one that runs ends. May be called by a signal's handler."""
        self._stopped = True

    def run(self) -> None:
        """Run until no timer is left, or until it is stopped.

        What is set by now, all that a run begins with, is sorted once: so the heap stays small.
        """
        known = sorted(self._timers, reverse=True)
        timers = self._timers = []
        while (known or timers) and not self._stopped:
            if not timers or (known and known[-1] < timers[0]):
                self._now, _, callback = known.pop()
            else:
                self._now, _, callback = heapq.heappop(timers)
            callback()
