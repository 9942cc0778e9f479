"""Profile of an engine: its limits and the cost of its steps, and the shape of a call to it."""

from typing import Literal

import msgspec


class StepCost(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Duration of a step, in µs, from the formula below.

            fixed + max(weights, prefill_token * P + decode_seq * D)
                  + prefill_seq * S + kv_token * K + attention * A

    P: prompt (and recomputed) tokens of the step; D: sequences that get their next token in it; S:
    sequences whose prompt begins in it; K: tokens of KV cache that these D sequences read; A: pairs
    of a prompt token computed in this step and a token at or before it to which it attends.

    `weights` is the time to read the model's weights, which overlaps with arithmetic. `prefill_seq`
    is the cost of a call in addition to its tokens: if the engine shares its cores with its HTTP
    server, as on a CPU, that is much.
    """

    fixed_us: float = 0.0
    weights_us: float = 0.0
    prefill_token_us: float = 0.0
    prefill_seq_us: float = 0.0
    decode_seq_us: float = 0.0
    kv_token_us: float = 0.0
    attention_us: float = 0.0

    @staticmethod
    def attended_pairs(new_tokens: float, cached_tokens: float = 0.0) -> float:
        """Return A of a whole prompt, which is computed but for its cached tokens."""
        return new_tokens * cached_tokens + new_tokens * (new_tokens + 1) / 2


class EngineProfile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Profile of one engine with its model. The defaults are vLLM's."""

    name: str
    source: str  # origin of the figures
    measured: bool  # measured on the real engine, or derived
    kv_tokens: int  # tokens of all its blocks together
    block_size: int = 16
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    max_model_len: int = 8192
    scheduling: Literal["fcfs", "priority"] = "fcfs"
    prefix_caching: bool = True
    call_us: float = 0.0  # time before a call reaches the engine's queue: HTTP, tokenizer
    step: StepCost


class CallShape(msgspec.Struct, frozen=True, kw_only=True):
    """LLM call, in tokens."""

    prompt: float
    answer: float
    cached: float = 0.0  # of the prompt
    new_cv2: float = 0.0  # of new tokens over calls: squared deviation over mean
    together: float = 1.0  # calls that begin in the same instant, as a call of them counts them

    @property
    def new(self) -> float:
        """Return the prompt tokens that must be computed."""
        return self.prompt - self.cached

    @property
    def context(self) -> float:
        """Return the tokens that a step reads, on average over the answer."""
        return self.prompt + self.answer / 2
