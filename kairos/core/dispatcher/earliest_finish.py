"""When a call could be done at the earliest, as far as is known: for calls that have a deadline.

To refuse a call that would have made it is worse than to refuse one too late. So whatever is not
known costs nothing: an answer's length, what an agent's calls take until some have ended, a pace
that has not been measured. And what is known is taken to be twice as good: the estimate must be
wrong by a factor of two before a call is refused that would have made it. Ours.
"""

from collections.abc import Sequence

from kairos.core.dispatcher.ledger import Ledger
from kairos.core.learnt import AgentProfile
from kairos.core.model import Instance, Request

OPTIMISM = 2
_OBSERVED = 16.0  # prompts, from which on the pace is known


def least_us(
    request: Request, serving: Sequence[Instance], ledger: Ledger, profile: AgentProfile | None
) -> float:
    """Execution of the call at the earliest, on the quickest of these. `profile`: of its agent, not
    of others like it."""
    prompt_us = min((_prompt_us(request, each, ledger) for each in serving), default=0.0)
    return max(prompt_us, _quickest_us(request, profile)) / OPTIMISM


def _prompt_us(request: Request, instance: Instance, ledger: Ledger) -> float:
    speed = ledger.served.speeds[instance.id]
    if speed.pace.prompt.weight < _OBSERVED:
        return 0.0
    cached = ledger.prefixes.match(request).get(instance.id, 0)
    return speed.compute_us(max(0, request.prompt_tokens - cached))


def _quickest_us(request: Request, profile: AgentProfile | None) -> float:
    """Of the agent's calls of late; of one that may say less than any of them did, nothing is
    known."""
    if profile is None:
        return 0.0
    limit, answers = request.completion_limit, profile.completion_tokens
    if limit is not None and (answers is None or limit < answers.quantiles[0]):
        return 0.0
    return profile.call_us.quantiles[0]
