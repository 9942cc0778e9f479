"""How quickly a queue drains while anything waits in it: ours.

Time in which nothing waits says nothing of how quickly more could leave, so it is left out, and so
is what leaves at the instant at which the first came.
"""

from collections import deque

_DEPARTURES = 64  # by which it is told
_ENOUGH = 32


class DrainRate:
    """Of one queue. Requests leave it for an instance, or because nobody waits for them."""

    def __init__(self) -> None:
        self._since: int | None = None  # something waits; None: nothing does
        self._before_us = 0  # for which something waited, until `_since`
        self._left_us: deque[int] = deque(maxlen=_DEPARTURES)  # when, on that clock

    def waits(self, at: int) -> None:
        """Something waits, perhaps beside others."""
        if self._since is None:
            self._since = at

    def left(self, at: int, *, is_empty: bool, counts: bool = True) -> None:
        """One that waited left; `is_empty`: it was the last. `counts`: not so where it was turned
        away because another came."""
        assert self._since is not None
        if counts and at > self._since:
            self._left_us.append(self._before_us + at - self._since)
        if is_empty:
            self._before_us += at - self._since
            self._since = None

    def forget(self) -> None:
        """It is not as it was."""
        self._left_us.clear()

    @property
    def is_known(self) -> bool:
        """So well that a request may be refused by it."""
        return len(self._left_us) >= _ENOUGH

    def each_us(self, at: int) -> float | None:
        """From one departure to the next, on average of the latest and of the time since the last,
        which tells of a queue that is stuck; None: too few are known."""
        if len(self._left_us) < 2:
            return None
        now_us = self._before_us + (at - self._since if self._since is not None else 0)
        return (now_us - self._left_us[0]) / (len(self._left_us) - 1)
