"""An engine as the model needs to know it: its limits, and what its steps cost."""

from typing import Literal

import msgspec


class StepCost(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How long a step takes, in µs:

        fixed + max(weights, prefill_token * P + decode_seq * D)
              + prefill_seq * S + kv_token * K + attention * A

    P: prompt (and recomputed) tokens of the step; D: sequences that get their next token with it;
    S: sequences whose prompt is begun in it; K: tokens of KV cache that these D sequences read;
    A: pairs of a prompt token computed in this step and a token before it (its own included) to
    which it attends.

    `weights` is the time to read the model's weights, which arithmetic hides, or is hidden by.
    `prefill_seq` is what a call costs the engine beside its tokens: where the engine shares its
    cores with its HTTP server, as on a CPU, that is much.
    """

    fixed_us: float = 0.0
    weights_us: float = 0.0
    prefill_token_us: float = 0.0
    prefill_seq_us: float = 0.0
    decode_seq_us: float = 0.0
    kv_token_us: float = 0.0
    attention_us: float = 0.0


class EngineProfile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One engine with its model. The defaults are vLLM's."""

    name: str
    source: str  # where the figures come from
    measured: bool  # on the real engine; else derived
    kv_tokens: int  # of all its blocks together
    block_size: int = 16
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    max_model_len: int = 8192
    scheduling: Literal["fcfs", "priority"] = "fcfs"
    prefix_caching: bool = True
    call_us: float = 0.0  # between a call's arrival and the engine's queue: HTTP, tokenizer
    step: StepCost
