"""Real time."""

import time


class WallClock:
    """Microseconds since the Unix epoch, read at the start and advanced by the monotonic clock.

    Instants are comparable across hosts (as far as their clocks agree), and never run backwards
    when an operator or NTP sets the time.
    """

    def __init__(self) -> None:
        self._origin_ns = time.time_ns() - time.monotonic_ns()

    def now(self) -> int:
        return (self._origin_ns + time.monotonic_ns()) // 1000
