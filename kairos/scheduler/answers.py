"""How long answers have been lately, by agent: known from the first few calls on, where profiles
wait for workflows to end. Ours."""

from collections import OrderedDict, deque

import numpy as np

from kairos.learnt import AgentKey, Distribution, agent_key, distribution, exponential
from kairos.model import EXPECTED_COMPLETION_TOKENS, Request

_WINDOW = 256  # answers
_FEWEST = 4  # of which something is said
_MAX_AGENTS = 5_000
# Short answers end first, so what is seen first is too short: beside it stand as many of what is
# expected of unknown calls, whose weight fades.
_GUESSED = [round(each) for each in exponential(EXPECTED_COMPLETION_TOKENS, 16).quantiles]


class _Sample:
    def __init__(self) -> None:
        self.tokens: deque[int] = deque(maxlen=_WINDOW)
        self.new = 0  # since the distribution was made
        self.distribution: Distribution | None = None

    def see(self, tokens: int) -> None:
        self.tokens.append(tokens)
        self.new += 1
        # Anew with each eighth more: often enough at first, seldom in the long run.
        if len(self.tokens) >= _FEWEST and self.new * 8 >= len(self.tokens):
            self.distribution, self.new = distribution(np.array([*self.tokens, *_GUESSED])), 0


class Answers:
    """By agent. No agent stands for another: those of one app differ by a hundred times."""

    def __init__(self) -> None:
        self._samples: OrderedDict[AgentKey, _Sample] = OrderedDict()  # longest unseen first

    def see(self, request: Request, tokens: int) -> None:
        key = agent_key(request)
        sample = self._samples.get(key)
        if sample is None:
            sample = self._samples[key] = _Sample()
            if len(self._samples) > _MAX_AGENTS:
                self._samples.popitem(last=False)
        self._samples.move_to_end(key)
        sample.see(tokens)

    def distribution(self, request: Request) -> Distribution | None:
        """In tokens; None: too few were seen."""
        sample = self._samples.get(agent_key(request))
        return sample.distribution if sample is not None else None
