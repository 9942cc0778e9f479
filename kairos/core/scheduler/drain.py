"""Rate at which a queue drains while it is not empty. Not in the paper.

Time in which the queue is empty says nothing about the possible rate, so it is left out. So are
departures at the very instant at which the first request arrived.
"""

from collections import deque

_DEPARTURES = 64  # latest departures used to estimate the rate
_ENOUGH = 32  # departures needed to refuse requests on this estimate


class DrainRate:
    """Drain rate of one queue. Requests leave it for an instance, or because they are cancelled."""

    def __init__(self) -> None:
        self._since: int | None = None  # when the queue became non-empty; None: it is empty
        self._before_us = 0  # total time it was non-empty, before `_since`
        self._left_us: deque[int] = deque(maxlen=_DEPARTURES)  # departures, on that clock

    def note_waiting(self, at: int) -> None:
        """Record that a request waits, whether or not others do."""
        if self._since is None:
            self._since = at

    def count_departure(self, at: int, *, is_empty: bool, counts: bool = True) -> None:
        """Record a departure. It `counts` for the rate, unless it was evicted by a newcomer."""
        assert self._since is not None
        if counts and at > self._since:
            self._left_us.append(self._before_us + at - self._since)
        if is_empty:
            self._before_us += at - self._since
            self._since = None

    def forget_departures(self) -> None:
        """Forget the rate, because conditions have changed."""
        self._left_us.clear()

    @property
    def is_known(self) -> bool:
        """Return whether enough departures are known to refuse requests on this estimate."""
        return len(self._left_us) >= _ENOUGH

    def each_us(self, at: int) -> float | None:
        """Return the mean time between departures; None if too few are known.

        The time since the last departure counts too, so that a stuck queue shows.
        """
        if len(self._left_us) < 2:
            return None
        now_us = self._before_us + (at - self._since if self._since is not None else 0)
        return (now_us - self._left_us[0]) / (len(self._left_us) - 1)
