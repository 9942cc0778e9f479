"""What a call takes of an instance that serves both phases, or one of them, at its largest batch.

Busy time is in seconds of the whole instance: a decode step of b sequences counts as a b-th for
each of them, and of p stages each counts as a p-th. An instance that is busy all the time can do no
more; so calls a second times busy seconds is how many instances they need at the least.
"""

import math
from enum import StrEnum

import msgspec

from kairos.planner.engine_rates import EngineRates


class Phases(StrEnum):
    """Of LLM calls, what an instance serves."""

    BOTH = "both"
    PREFILL = "prefill"
    DECODE = "decode"


class CallShape(msgspec.Struct, frozen=True, kw_only=True):
    """An LLM call, in tokens."""

    prompt: float
    answer: float
    cached: float = 0.0  # of the prompt

    @property
    def new(self) -> float:
        """Of the prompt, what must be computed."""
        return self.prompt - self.cached

    @property
    def context(self) -> float:
        """That a step reads, in the mean over the answer."""
        return self.prompt + self.answer / 2


class LatencyTargets(msgspec.Struct, frozen=True, kw_only=True):
    """Of every call. inf: none."""

    ttft_s: float = math.inf
    tpot_s: float = math.inf


NO_TARGETS = LatencyTargets()


class InstanceUse(msgspec.Struct, frozen=True, kw_only=True):
    """Of one call by one instance."""

    busy_s: float  # of the instance
    latency_s: float  # of the call, at the largest batch, without waiting
    batch: int = 1


def use(
    rates: EngineRates, call: CallShape, phases: Phases, targets: LatencyTargets = NO_TARGETS
) -> InstanceUse | None:
    """None: the instance cannot serve such calls within the targets."""
    if phases is Phases.PREFILL:
        return _prefill(rates, call, targets)
    if phases is Phases.DECODE:
        return _decode(rates, call, targets)
    return _both(rates, call, targets)


def _prefill(rates: EngineRates, call: CallShape, targets: LatencyTargets) -> InstanceUse | None:
    computing = rates.prefill_s(call.new, call.cached)
    latency = rates.call_s + computing
    if latency > targets.ttft_s or call.prompt > rates.kv_tokens:
        return None
    return InstanceUse(busy_s=computing / rates.stages, latency_s=latency)


def _decode(rates: EngineRates, call: CallShape, targets: LatencyTargets) -> InstanceUse | None:
    batch = rates.largest_batch(call.context, targets.tpot_s)
    if not batch:
        return None
    step = rates.step_s(batch / rates.stages, call.context)
    return InstanceUse(busy_s=call.answer * step / batch, latency_s=call.answer * step, batch=batch)


def _both(rates: EngineRates, call: CallShape, targets: LatencyTargets) -> InstanceUse | None:
    """Prompts are computed in the steps of those that decode, which waits for them."""
    computing = _prefill(rates, call, targets)
    if computing is None:
        return None
    low, high = 0, rates.largest_batch(call.context) // rates.stages
    while low < high:  # of a stage: the largest batch in time
        middle = (low + high + 1) // 2
        if token_s(rates, call, middle) <= targets.tpot_s:
            low = middle
        else:
            high = middle - 1
    if not low:
        return None
    step = rates.step_s(low, call.context)
    return InstanceUse(
        busy_s=computing.busy_s + call.answer * step / (low * rates.stages),
        latency_s=computing.latency_s + call.answer * token_s(rates, call, low),
        batch=low * rates.stages,
    )


def token_s(rates: EngineRates, call: CallShape, stage_batch: int) -> float:
    """Time per token where both phases share an instance that is never idle.

    Each sequence that ends makes room for one prompt: so of the time that a batch takes for its
    answers, what one prompt for each sequence takes is added.
    """
    step = rates.step_s(stage_batch, call.context)
    prompts = stage_batch * rates.prefill_s(call.new, call.cached)
    return step + prompts / max(call.answer, 1.0)
