"""Real time."""

import time


class WallClock:
    """Microseconds since the Unix epoch, read once at the start and counted on by the monotonic
    clock: instants compare across hosts (as far as their clocks agree), and never run backwards
    when an operator or NTP sets the time."""

    def __init__(self) -> None:
        self._origin_ns = time.time_ns() - time.monotonic_ns()

    def now(self) -> int:
        return (self._origin_ns + time.monotonic_ns()) // 1000
