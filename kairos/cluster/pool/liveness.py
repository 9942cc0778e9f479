"""Which performers are still there, told from what is heard of them."""

from collections.abc import Iterable

from kairos.cluster.pool.performer import BEAT_S
from kairos.core.model import SECOND

LOST_S = 5.0  # of silence
_STALLED_S = 2.5  # without a sign of life of our own: then it is the bus that is silent


class Liveness:
    """Time is an argument, in µs. Our own signs of life take the way that the others' take, so
    while they do not come, nobody's silence means anything."""

    def __init__(self, ourselves: str, performers: Iterable[str], now: int) -> None:
        self._ourselves = ourselves
        self._heard_at = {**dict.fromkeys(performers, now), ourselves: now}

    def hear(self, performer: str, now: int) -> None:
        silent_us = now - self._heard_at[self._ourselves]
        if performer == self._ourselves and silent_us > 2 * BEAT_S * SECOND:
            self._heard_at = dict.fromkeys(self._heard_at, now)  # theirs may be yet to come
        self._heard_at[performer] = now

    def take_lost(self, now: int) -> set[str]:
        """Those that fell silent; they are forgotten."""
        if now - self._heard_at[self._ourselves] > _STALLED_S * SECOND:
            return set()
        lost = {each for each, at in self._heard_at.items() if at + LOST_S * SECOND < now}
        for each in lost:
            del self._heard_at[each]
        return lost
