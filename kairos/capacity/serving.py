"""Use of an instance by a call, at the largest batch, for both phases or one of them.

Busy time is in seconds of the whole instance: a decode step of b sequences counts as a b-th for
each of them, and of p stages each counts as a p-th. An instance can be busy all the time at most;
so calls a second times busy seconds is the least number of instances.
"""

import math
from enum import StrEnum

import msgspec

from kairos.capacity.engine_rates import EngineRates, largest_fitting
from kairos.core import CallShape, StepCost


class Phases(StrEnum):
    """Phases of LLM calls that an instance serves."""

    BOTH = "both"
    PREFILL = "prefill"
    DECODE = "decode"


class LatencyTargets(msgspec.Struct, frozen=True, kw_only=True):
    """Targets of every call. inf: no target."""

    ttft_s: float = math.inf
    tpot_s: float = math.inf


NO_TARGETS = LatencyTargets()


class InstanceUse(msgspec.Struct, frozen=True, kw_only=True):
    """Use of an instance by one call."""

    busy_s: float  # of the instance
    latency_s: float  # of the call, at the largest batch, without waiting
    batch: int = 1


def use(
    rates: EngineRates, call: CallShape, phases: Phases, targets: LatencyTargets = NO_TARGETS
) -> InstanceUse | None:
    """Return the use; None: the instance cannot serve such calls within the targets."""
    if phases is Phases.PREFILL:
        return _prefill(rates, call, targets)
    if phases is Phases.DECODE:
        return _decode(rates, call, targets)
    return _both(rates, call, targets)


def _prefill(rates: EngineRates, call: CallShape, targets: LatencyTargets) -> InstanceUse | None:
    """Return the use for prompts: as many share a step as fit, and meet the target together."""

    def latency_s(prompts: int) -> float:
        return rates.call_s + rates.prefill_s(call.new, call.cached, prompts)

    if call.prompt > rates.kv_tokens:
        return None
    most = max(1, min(int(rates.chunk_tokens / max(call.new, 1.0)), rates.max_num_seqs))
    prompts = largest_fitting(most, lambda count: latency_s(count) <= targets.ttft_s)
    if not prompts:
        return None
    computing = rates.prefill_s(call.new, call.cached, prompts)
    return InstanceUse(
        busy_s=computing / prompts / rates.stages, latency_s=latency_s(prompts), batch=prompts
    )


def _decode(rates: EngineRates, call: CallShape, targets: LatencyTargets) -> InstanceUse | None:
    batch = rates.largest_batch(call.context, targets.tpot_s)
    if not batch:
        return None
    step = rates.step_s(batch / rates.stages, call.context)
    return InstanceUse(busy_s=call.answer * step / batch, latency_s=call.answer * step, batch=batch)


def _both(rates: EngineRates, call: CallShape, targets: LatencyTargets) -> InstanceUse | None:
    """Return the use for both phases: prompts are computed in the steps of decoding sequences.

    Each sequence that ends makes room for a prompt: with each token of a batch, as many prompts
    begin as sequences end.
    """
    pairs = StepCost.attended_pairs(call.new, call.cached)
    answer = max(call.answer, 1.0)

    def token_s(batch: int) -> float:
        return rates.mixed_step_s(batch, call.context, batch / answer, call.new, pairs)

    def ttft_s(batch: int) -> float:
        return rates.call_s + rates.beside_s(batch, call.context, call.new, pairs)

    most = rates.largest_batch(call.context) // rates.stages
    batch = largest_fitting(
        most, lambda b: token_s(b) <= targets.tpot_s and ttft_s(b) <= targets.ttft_s
    )
    if not batch:
        return None
    return InstanceUse(
        busy_s=answer * token_s(batch) / (batch * rates.stages),
        latency_s=ttft_s(batch) + call.answer * token_s(batch),
        batch=batch * rates.stages,
    )
