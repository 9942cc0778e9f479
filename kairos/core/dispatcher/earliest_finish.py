"""Earliest possible end of a call, for calls with a deadline. Not in the paper.

Refusing a call that would have met its deadline is worse than refusing one too late. So unknown
parts count as 0: the length of an answer, the latency of an agent's calls until some have ended,
and a speed that was not measured yet. What is known is divided by two: the estimate must be wrong
by a factor of two before a call is refused that would have met its deadline.
"""

from collections.abc import Sequence

from kairos.core.dispatcher.ledger import Ledger
from kairos.core.learnt import AgentProfile
from kairos.core.model import Instance, Request

OPTIMISM = 2
_OBSERVED = 16.0  # prompts needed for a known speed


def least_us(
    request: Request, serving: Sequence[Instance], ledger: Ledger, profile: AgentProfile | None
) -> float:
    """Return the shortest possible execution of the call, on the fastest of these instances.

    `profile` is that of exactly its agent, not of a wider pool.
    """
    prompt_us = min((_prompt_us(request, each, ledger) for each in serving), default=0.0)
    return max(prompt_us, _quickest_us(request, profile)) / OPTIMISM


def _prompt_us(request: Request, instance: Instance, ledger: Ledger) -> float:
    speed = ledger.served.speeds[instance.id]
    if speed.pace.prompt.weight < _OBSERVED:
        return 0.0
    cached = ledger.prefixes.match(request).get(instance.id, 0)
    return speed.compute_us(max(0, request.prompt_tokens - cached))


def _quickest_us(request: Request, profile: AgentProfile | None) -> float:
    """Return the shortest recent latency of the agent's calls.

    0 if the request's limit allows an answer shorter than any of these.
    """
    if profile is None:
        return 0.0
    limit, answers = request.completion_limit, profile.completion_tokens
    if limit is not None and (answers is None or limit < answers.quantiles[0]):
        return 0.0
    return profile.call_us.quantiles[0]
