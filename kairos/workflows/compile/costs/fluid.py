"""Time of an idle engine for n calls that arrive at once, in closed form from its profile.

In essence `prefill * P + ceil(n / B) * sum(fixed + max(weights, decode * B) + kv * K)`: prompts are
computed, and B sequences at a time decode, where B is limited by the engine's batch size and its KV
memory: a sequence holds its prompt and, averaged over its life, half of its answer; a prefix shared
by all prompts is held once.

Beyond that sum, as vLLM schedules: prompts are computed in chunks of `max_num_batched_tokens`
alongside decoding sequences, in steps that read the weights anyway, so that computation hides
behind memory reads or the other way round, step by step. If B sequences need S steps for their
prompts, they end over S steps, too, and the next ones begin in those: waves follow each other every
a steps (answers of a tokens), or every S if that is more, and only the first wave's S steps are
added.

Deviations: all calls are alike; preemptions are not modelled (the mean footprint represents their
effect on the batch); cached prefixes are cached from the first call on.
"""

import math

from kairos.core import CallShape, EngineProfile, StepCost


def largest_batch(profile: EngineProfile, shape: CallShape) -> int:
    """Return how many sequences of such calls decode at once: at least 1."""
    own = max(1.0, shape.new + shape.answer / 2)
    room = (profile.kv_tokens - shape.cached) / own
    return max(1, min(profile.max_num_seqs, int(room)))


def makespan_us(profile: EngineProfile, shape: CallShape, calls: int) -> float:
    """Return the time in µs of `calls` calls that arrive at once at an idle engine.

    It ends when the last call ends; 0 for no calls. `shape` describes each call, in tokens. For m
    instances that share the calls evenly, pass `ceil(calls / m)`.
    """
    if calls <= 0:
        return 0.0
    batch = min(calls, largest_batch(profile, shape))
    waves, rest = divmod(calls, batch)
    answer = max(1.0, shape.answer)
    total = profile.call_us + (waves - 1) * _wave_us(profile, shape, batch, answer)
    total += _last_us(profile, shape, batch, answer if rest else answer - 1)
    if rest:
        total += _last_us(profile, shape, rest, answer - 1)
    return total


def _prompt_steps(profile: EngineProfile, shape: CallShape, batch: int, beside: float) -> float:
    """Return the steps for the prompts of a batch, while some other sequences decode."""
    chunk = max(1.0, profile.max_num_batched_tokens - beside)
    return max(1.0, batch * shape.new / chunk)


def _wave_us(profile: EngineProfile, shape: CallShape, batch: int, answer: float) -> float:
    """Return the time from one full batch to the next one."""
    prompts = _prompt_steps(profile, shape, batch, batch)
    # Where prompts take longer than answers, only part of the batch decodes during them.
    decoding = batch * min(1.0, answer / prompts)
    beside = _steps_us(profile, shape, prompts, batch, decoding)
    return beside + _steps_us(profile, shape, max(0.0, answer - prompts), 0, batch)


def _last_us(profile: EngineProfile, shape: CallShape, batch: int, alone: float) -> float:
    """Return the time of a batch not followed by a full one, with its prompts.

    `alone`: steps without prompts.
    """
    prompts = math.ceil(_prompt_steps(profile, shape, batch, 0))
    tokens = batch * max(0.0, shape.answer - 1)  # beyond the first ones, which come with prompts
    decoding = min(tokens / (prompts + alone), batch * (prompts - 1) / 2)
    total = _steps_us(profile, shape, prompts, batch, decoding)
    if alone > 0:
        left = max(0.0, tokens - prompts * decoding)
        total += _steps_us(profile, shape, alone, 0, left / alone)
    return total


def _steps_us(
    profile: EngineProfile, shape: CallShape, steps: float, prompts: int, decoding: float
) -> float:
    """Return the time of `steps` steps that compute `prompts` prompts while sequences decode.

    `decoding`: sequences that decode in each step.
    """
    if steps <= 0:
        return 0.0
    cost = profile.step
    pairs = StepCost.attended_pairs(shape.new, shape.cached)
    arithmetic = cost.prefill_token_us * prompts * shape.new
    arithmetic += cost.decode_seq_us * decoding * steps
    caches = cost.kv_token_us * decoding * steps * shape.context
    caches += cost.attention_us * prompts * pairs
    matrices = max(cost.weights_us * steps, arithmetic)
    return cost.fixed_us * steps + matrices + caches + cost.prefill_seq_us * prompts
