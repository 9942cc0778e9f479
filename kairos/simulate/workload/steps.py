"""Work and duration of an engine's steps, in the units of its model."""

import msgspec


class Steps(msgspec.Struct, frozen=True, kw_only=True):
    """Steps of an engine; for the letters see `kairos.core.engine_profile.StepCost`."""

    group: str  # observations that were made alike
    took_us: float
    calls: int = 0  # 1 where `took_us` is of one call, from its sending to its first token
    steps: float
    prefill_steps: float = 0  # of these steps, those in which prompts were computed
    prefill_tokens: float = 0  # P, summed over the steps, as are the others
    prefill_seqs: float = 0  # S
    decode_seqs: float = 0  # D
    kv_tokens: float = 0  # K
    attention_pairs: float = 0  # A
