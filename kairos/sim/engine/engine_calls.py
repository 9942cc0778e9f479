"""What goes into the model of an engine, and what comes out of it."""

from typing import Literal, NamedTuple

import msgspec

from kairos.workload.prompt import Prompt

What = Literal["first_token", "finished"]


class EngineCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call as an engine gets it, with the length that its answer will have.

    `whole`: the prompt and the answer after it, as one, where it is known what the answer says. A
    later prompt that goes on with the answer finds it in the prefix cache, then. Of an engine's
    calls either all have it or none.
    """

    id: str
    prompt: Prompt
    completion_tokens: int
    whole: Prompt | None = None
    priority: int = 0  # lower goes first, where the engine orders by priority


class CallProgress(NamedTuple):
    """Something that a client sees. The counts are those of the call so far."""

    at: int  # µs
    what: What
    call_id: str
    cached_tokens: int  # of the prompt, at its first admission
    preemptions: int
    recomputed_tokens: int


class EngineStats(msgspec.Struct):
    """What an engine has done so far. Steps count, with their tokens, when they have ended.

    `queried_tokens` and `cached_tokens` are of prompts at their first admission, as vLLM's
    `prefix_cache_queries` and `prefix_cache_hits` are; nothing is queried without a prefix cache.
    """

    steps: int = 0
    prefill_tokens: int = 0  # computed of prompts, and of answers that had been computed before
    decode_tokens: int = 0  # computed one by one; the first of an answer comes with its prompt
    queried_tokens: int = 0
    cached_tokens: int = 0
    preemptions: int = 0
    recomputed_tokens: int = 0  # those of `prefill_tokens` that preempted calls had had before
    aborted_tokens: int = 0  # of answers that nobody waited for any more
