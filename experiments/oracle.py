"""Estimates that know the future: for simulation only, to see what any estimate could gain."""

from collections.abc import Hashable, Mapping
from functools import lru_cache

from kairos.core import QUANTILES, Distribution, Request
from kairos.core.dispatcher.demand import Lengths
from kairos.core.scheduler.policies import Key


class Srpt:
    """The order: shortest true remaining work first.

    Needs, for each request, what a live service cannot know: the execution latency of its workflow
    from that call on.
    """

    def __init__(self, remaining_us: Mapping[str, float]) -> None:
        self._remaining_us = remaining_us

    def key(self, request: Request, _state: Hashable, /) -> Key:
        return self._remaining_us[request.id], request.workflow_started_at, request.arrived_at

    def state(self, request: Request) -> Hashable:  # noqa: ARG002
        return None

    def patience_us(self, request: Request) -> int | None:  # noqa: ARG002
        return None


class KnownLengths:
    """Lengths without uncertainty: each answer's own.

    How long a call takes depends on load too, and stays as learnt.
    """

    def __init__(self, learnt: Lengths, completion_tokens: Mapping[str, int]) -> None:
        """`completion_tokens`: of every answer, by the request's id."""
        self._learnt, self._completion_tokens = learnt, completion_tokens

    def kind(self, request: Request) -> Hashable:
        return self._completion_tokens[request.id]

    def completion_tokens(self, request: Request) -> Distribution:
        return _always(self._completion_tokens[request.id])

    def latency_us(self, request: Request) -> Distribution | None:
        return self._learnt.latency_us(request)

    def call_us(self, request: Request) -> int:
        return self._learnt.call_us(request)


@lru_cache(maxsize=4096)
def _always(tokens: int) -> Distribution:
    return Distribution(float(tokens), (float(tokens),) * QUANTILES)
