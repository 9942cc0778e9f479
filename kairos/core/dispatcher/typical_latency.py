"""Most frequent latency of an agent's calls."""

from kairos.core.dispatcher.demand import Lengths, mode
from kairos.core.learnt import Distribution
from kairos.core.model import Request

_MAX_MODES = 8192


class TypicalLatencies:
    """Mode of each agent's latency distribution, computed once per published distribution.

    All unknown agents share one distribution.
    """

    def __init__(self, lengths: Lengths) -> None:
        self._lengths = lengths
        # By `id` of the distribution, which is stored to keep it alive.
        self._modes: dict[int, tuple[Distribution, float]] = {}

    def typical_us(self, request: Request) -> float:
        """Return the most frequent latency of calls like this one (kairos paper, 6)."""
        known = self._lengths.latency_us(request)
        if known is None:
            return self._lengths.call_us(request)
        found = self._modes.get(id(known))
        if found is None:
            if len(self._modes) >= _MAX_MODES:
                self._modes.clear()
            found = self._modes[id(known)] = known, mode(known)
        return found[1]
