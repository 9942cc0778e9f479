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

    def now(self) -> int:
        return self._now

    def call_at(self, at: int, callback: Callable[[], None]) -> None:
        assert at >= self._now, f"{at} is in the past, it is {self._now}"
        heapq.heappush(self._timers, (at, next(self._seq), callback))

    def run(self) -> None:
        """Run until no timer is left."""
        while self._timers:
            self._now, _, callback = heapq.heappop(self._timers)
            callback()
