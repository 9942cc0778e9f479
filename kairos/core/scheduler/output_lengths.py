"""Recent lengths of answers, by agent. Not in the paper.

Available after the first few calls, whereas profiles need ended workflows. A new balancer that has
seen no answer yet starts from the profile.
"""

from collections import deque
from collections.abc import Iterable

import numpy as np

from kairos.core.agent_key import AgentKey, agent_key_of
from kairos.core.learnt import (
    AgentProfile,
    Distribution,
    distribution,
    exponential_distribution,
    parts,
)
from kairos.core.model import EXPECTED_COMPLETION_TOKENS, Request
from kairos.core.shared_lru import SharedLru

_WINDOW = 256  # answers
_FEWEST = 4  # answers needed for a distribution
_MAX_AGENTS = 5_000
# Short answers end first, and the longest of a few is seldom the longest possible. So a few values
# expected of unknown calls are added to the sample; their weight fades.
_GUESSED = [
    round(each) for each in exponential_distribution(EXPECTED_COMPLETION_TOKENS, 4).quantiles
]


class _Sample:
    def __init__(self, tokens: Iterable[float] = ()) -> None:
        self.tokens = deque(tokens, maxlen=_WINDOW)
        self.new = len(self.tokens)  # answers since the distribution was computed
        self.distribution: Distribution | None = None
        self._look()

    def add_answer(self, tokens: int) -> None:
        self.tokens.append(tokens)
        self.new += 1
        self._look()

    def _look(self) -> None:
        # Recompute after each eighth more: often at first, seldom in the long run.
        if len(self.tokens) >= _FEWEST and self.new * 8 >= len(self.tokens):
            self.distribution, self.new = distribution(np.array([*self.tokens, *_GUESSED])), 0


class OutputLengths:
    """Distributions by agent.

    Agents are not pooled: agents of one app differ by a factor of 100.
    """

    def __init__(self) -> None:
        self._samples: SharedLru[AgentKey, _Sample] = SharedLru(_MAX_AGENTS)

    def learn_answer(self, request: Request, tokens: int) -> None:
        key = agent_key_of(request)
        sample = self._samples.get(key)
        if sample is None:
            sample = _Sample()
            self._samples.put(key[0], key, sample)
        else:
            self._samples.touch(key[0], key)
        sample.add_answer(tokens)

    def seed_from_profile(self, profile: AgentProfile) -> None:
        """Start from a profile of another process or run, unless enough answers were seen here."""
        known, sample = profile.completion_tokens, self._samples.get(profile.key)
        if known is None or profile.samples < _FEWEST:
            return
        if sample is None or sample.distribution is None:
            before = parts(np.array(known.quantiles), min(profile.samples, _WINDOW)).tolist()
            told = _Sample([*before, *(sample.tokens if sample else ())])
            self._samples.put(profile.tenant, profile.key, told)

    def distribution(self, request: Request) -> Distribution | None:
        """Return the distribution in tokens; None if too few answers were seen."""
        sample = self._samples.get(agent_key_of(request))
        return sample.distribution if sample is not None else None
