"""How long calls of an agent take most often."""

from kairos.dispatcher.demand import Lengths, mode
from kairos.learnt import AgentKey, Distribution, agent_key
from kairos.model import Request

_MAX_MODES = 8192


class TypicalLatencies:
    """The mode of each agent's latencies, found once for each distribution that is published."""

    def __init__(self, lengths: Lengths) -> None:
        self._lengths = lengths
        self._modes: dict[AgentKey, tuple[Distribution, float]] = {}

    def typical_us(self, request: Request) -> float:
        """How long calls like this one take most often (kairos paper, 6)."""
        known = self._lengths.latency_us(request)
        if known is None:
            return self._lengths.call_us(request)
        key = agent_key(request)
        found = self._modes.get(key)
        if found is None or found[0] is not known:
            if len(self._modes) >= _MAX_MODES:
                self._modes.clear()
            found = self._modes[key] = known, mode(known)
        return found[1]
