"""How long calls of an agent take most often."""

from kairos.core.dispatcher.demand import Lengths, mode
from kairos.core.learnt import Distribution
from kairos.core.model import Request

_MAX_MODES = 8192


class TypicalLatencies:
    """The mode of each agent's latencies, found once for each distribution that is published:
    agents that are not known, however many there are, have one in common."""

    def __init__(self, lengths: Lengths) -> None:
        self._lengths = lengths
        # By identity of the distribution, which is held with it.
        self._modes: dict[int, tuple[Distribution, float]] = {}

    def typical_us(self, request: Request) -> float:
        """How long calls like this one take most often (kairos paper, 6)."""
        known = self._lengths.latency_us(request)
        if known is None:
            return self._lengths.call_us(request)
        found = self._modes.get(id(known))
        if found is None:
            if len(self._modes) >= _MAX_MODES:
                self._modes.clear()
            found = self._modes[id(known)] = known, mode(known)
        return found[1]
