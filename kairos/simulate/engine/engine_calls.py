"""Input and output of the model of an engine."""

from typing import Literal, NamedTuple

import msgspec

from kairos.simulate.workload.prompt import Prompt

What = Literal["loading", "first_token", "finished"]

# Whose cache of its prompt a call gets: nobody's, that of another instance (the prefill half of a
# pair computed it), or what lies in the memory of the engine's host.
CacheFrom = Literal["nowhere", "instance", "host"]


class EngineCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call as an engine receives it, with the length that its answer will have.

    `whole` is the prompt with the answer after it, if the answer's text is known. A later prompt
    that continues the answer then finds it in the prefix cache. Either all of an engine's calls
    have it, or none.
    """

    id: str
    prompt: Prompt
    completion_tokens: int
    whole: Prompt | None = None
    priority: int = 0  # lower goes first, where the engine orders by priority
    # The halves of a pair. The first computes the prompt, for an answer of one token, and keeps its
    # blocks until they were read; the second fetches them instead of computing.
    keeps_cache: bool = False
    fetches_cache: bool = False


class CallProgress(NamedTuple):
    """An event of a call that a client sees, or the wait for a cache (`loading`).

    Counts cover the call so far.
    """

    at: int  # µs
    what: What
    call_id: str
    cached_tokens: int  # of the prompt, at its first admission
    preemptions: int
    recomputed_tokens: int
    loads_tokens: int = 0  # whole blocks of cache that are to come, where it is `loading`
    loads_from: CacheFrom = "nowhere"


class EngineStats(msgspec.Struct):
    """Counters of an engine. Steps count, with their tokens, when they have ended.

    `queried_tokens` and `cached_tokens` count prompts at their first admission, as vLLM's
    `prefix_cache_queries` and `prefix_cache_hits` do; without a prefix cache nothing is queried.
    """

    steps: int = 0
    prefill_tokens: int = 0  # computed of prompts, and of answers that had been computed before
    decode_tokens: int = 0  # computed one by one; the first of an answer comes with its prompt
    queried_tokens: int = 0
    cached_tokens: int = 0
    preemptions: int = 0
    recomputed_tokens: int = 0  # those of `prefill_tokens` that preempted calls had had before
    aborted_tokens: int = 0  # of answers that nobody waited for any more
