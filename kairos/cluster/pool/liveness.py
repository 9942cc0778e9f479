"""Liveness of performers, by their last signs of life."""

from collections.abc import Iterable

from kairos.cluster.pool.performer import BEAT_S
from kairos.core import SECOND

LOST_S = 5.0  # of silence
_STALLED_S = 2.5  # without a sign of life of our own: then the bus itself is stalled


class Liveness:
    """Liveness of performers. Time is an argument, in µs.

    This process's own signs of life take the same way over the bus as the others'. While its
    own do not arrive, the silence of others means nothing.
    """

    def __init__(self, ourselves: str, performers: Iterable[str], now: int) -> None:
        self._ourselves = ourselves
        self._heard_at = {**dict.fromkeys(performers, now), ourselves: now}

    def hear(self, performer: str, now: int) -> None:
        silent_us = now - self._heard_at[self._ourselves]
        if performer == self._ourselves and silent_us > 2 * BEAT_S * SECOND:
            self._heard_at = dict.fromkeys(self._heard_at, now)  # theirs may be delayed, too
        self._heard_at[performer] = now

    def take_lost(self, now: int) -> set[str]:
        """Return the performers that fell silent, and forget them."""
        if now - self._heard_at[self._ourselves] > _STALLED_S * SECOND:
            return set()
        lost = {each for each, at in self._heard_at.items() if at + LOST_S * SECOND < now}
        for each in lost:
            del self._heard_at[each]
        return lost
