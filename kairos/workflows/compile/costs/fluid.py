"""How long an idle engine takes for n calls that come at once, from its profile, in closed form.

In essence `prefill * P + ceil(n / B) * sum(fixed + max(weights, decode * B) + kv * K)`: prompts are
computed, and B sequences at a time decode, where B is what the engine runs at once and what its KV
memory holds: a sequence holds its prompt and, in the mean over its life, half of its answer; what
all prompts share is held once.

Beyond that sum, as vLLM schedules: prompts are computed in chunks of `max_num_batched_tokens`
beside those that decode already, in steps that read the weights anyway, so that arithmetic hides
behind reading or the other way round, step by step. Where B sequences need S steps for their
prompts, they end over S steps, too, and the next ones begin in those: waves follow each other every
a steps (answers of a tokens), or every S where that is more, and only the first wave's S steps come
on top.

Deviations: all calls are alike; preemptions are not modelled (the mean footprint stands for what
they leave of the batch); what is cached is cached from the first call on.
"""

import math

from kairos.capacity.engine_rates import attended_pairs
from kairos.capacity.serving import CallShape
from kairos.core.engine_profile import EngineProfile


def largest_batch(profile: EngineProfile, shape: CallShape) -> int:
    """Of such calls, how many sequences decode at once: 1 or more."""
    own = max(1.0, shape.new + shape.answer / 2)
    room = (profile.kv_tokens - shape.cached) / own
    return max(1, min(profile.max_num_seqs, int(room)))


def makespan_us(profile: EngineProfile, shape: CallShape, calls: int) -> float:
    """Until the last of `calls` calls has ended that come at once to one idle engine, in µs.

    0 for no calls. `shape` is of each of them, in tokens. On m instances that
    share the calls evenly: of `ceil(calls / m)` calls.
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
    """Steps that the prompts of a batch take, where so many sequences decode beside."""
    chunk = max(1.0, profile.max_num_batched_tokens - beside)
    return max(1.0, batch * shape.new / chunk)


def _wave_us(profile: EngineProfile, shape: CallShape, batch: int, answer: float) -> float:
    """From one full batch to the next, which follows at once."""
    prompts = _prompt_steps(profile, shape, batch, batch)
    # Where prompts take longer than answers, only some of the batch decode beside them.
    decoding = batch * min(1.0, answer / prompts)
    beside = _steps_us(profile, shape, prompts, batch, decoding)
    return beside + _steps_us(profile, shape, max(0.0, answer - prompts), 0, batch)


def _last_us(profile: EngineProfile, shape: CallShape, batch: int, alone: float) -> float:
    """A batch that nothing full follows, with its beginning; `alone`: steps without prompts."""
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
    """So many steps that begin `prompts` prompts, with so many sequences that decode in each."""
    if steps <= 0:
        return 0.0
    cost = profile.step
    pairs = attended_pairs(shape.new, shape.cached)
    arithmetic = cost.prefill_token_us * prompts * shape.new
    arithmetic += cost.decode_seq_us * decoding * steps
    caches = cost.kv_token_us * decoding * steps * shape.context
    caches += cost.attention_us * prompts * pairs
    matrices = max(cost.weights_us * steps, arithmetic)
    return cost.fixed_us * steps + matrices + caches + cost.prefill_seq_us * prompts
