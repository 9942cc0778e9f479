"""How long answers have been lately, by agent: known from the first few calls on, where profiles
wait for workflows to end. A balancer that has seen none yet, because it is new, begins with what
the profile says. Ours."""

from collections import deque
from collections.abc import Iterable

import numpy as np

from kairos.core.agent_key import AgentKey, agent_key
from kairos.core.learnt import AgentProfile, Distribution, distribution, exponential, parts
from kairos.core.model import EXPECTED_COMPLETION_TOKENS, Request
from kairos.core.shared_lru import SharedLru

_WINDOW = 256  # answers
_FEWEST = 4  # of which something is said
_MAX_AGENTS = 5_000
# Short answers end first, and the longest of a few is seldom the longest there is: beside what is
# seen stand some of what is expected of unknown calls, whose weight fades.
_GUESSED = [round(each) for each in exponential(EXPECTED_COMPLETION_TOKENS, 4).quantiles]


class _Sample:
    def __init__(self, tokens: Iterable[float] = ()) -> None:
        self.tokens = deque(tokens, maxlen=_WINDOW)
        self.new = len(self.tokens)  # since the distribution was made
        self.distribution: Distribution | None = None
        self._look()

    def see(self, tokens: int) -> None:
        self.tokens.append(tokens)
        self.new += 1
        self._look()

    def _look(self) -> None:
        # Anew with each eighth more: often enough at first, seldom in the long run.
        if len(self.tokens) >= _FEWEST and self.new * 8 >= len(self.tokens):
            self.distribution, self.new = distribution(np.array([*self.tokens, *_GUESSED])), 0


class OutputLengths:
    """By agent. No agent stands for another: those of one app differ by a hundred times."""

    def __init__(self) -> None:
        self._samples: SharedLru[AgentKey, _Sample] = SharedLru(_MAX_AGENTS)

    def see(self, request: Request, tokens: int) -> None:
        key = agent_key(request)
        sample = self._samples.get(key)
        if sample is None:
            sample = _Sample()
            self._samples.put(key[0], key, sample)
        else:
            self._samples.touch(key[0], key)
        sample.see(tokens)

    def told(self, profile: AgentProfile) -> None:
        """What was seen elsewhere, or before a restart. Of whom enough is known here, this is."""
        known, sample = profile.completion_tokens, self._samples.get(profile.key)
        if known is None or profile.samples < _FEWEST:
            return
        if sample is None or sample.distribution is None:
            before = parts(np.array(known.quantiles), min(profile.samples, _WINDOW)).tolist()
            told = _Sample([*before, *(sample.tokens if sample else ())])
            self._samples.put(profile.tenant, profile.key, told)

    def distribution(self, request: Request) -> Distribution | None:
        """In tokens; None: too few were seen."""
        sample = self._samples.get(agent_key(request))
        return sample.distribution if sample is not None else None
