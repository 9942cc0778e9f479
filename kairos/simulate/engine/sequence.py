"""Calls that an engine receives, what is seen of them, and a call inside of it."""

from typing import Literal, NamedTuple

import msgspec

from kairos.simulate.engine.blocks import Contents, answer_contents, part_of
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


class Sequence:
    """A call in the engine. Its tokens are the prompt's, and `generated` ones of the answer.

    While it decodes, `generated` and `computed` are not updated: they follow from the step's
    number. See `Decoding`.
    """

    __slots__ = (
        "cached_tokens",
        "call",
        "computed",
        "contents",
        "ends_in_step",
        "ever_computed",
        "generated",
        "is_answer_known",
        "is_dropped",
        "is_loaded",
        "may_fetch",
        "names",
        "number",
        "preemptions",
        "prompt_blocks",
        "prompt_tokens",
        "recomputed_tokens",
        "turn",
    )

    def __init__(
        self,
        call: EngineCall,
        number: int,
        prompt_tokens: int,
        prompt_blocks: int,
        contents: Contents | None,
    ) -> None:
        self.call = call
        self.number = number  # of the call, among all that the engine was told of
        self.prompt_tokens = prompt_tokens
        # Of the prompt's full blocks, and of the answer's if that is known; None: nothing can be
        # found.
        self.contents = contents
        self.is_answer_known = call.whole is not None
        self.prompt_blocks = prompt_blocks  # that are full
        self.generated = 0
        self.computed = 0  # tokens in KV memory, or on their way there in the current step
        self.ever_computed = 0  # before the last preemption
        self.names: list[range] = []  # of its blocks that can be found: its first ones
        self.turn: int | None = None  # its place among those that run; None: it does not
        self.ends_in_step: int | None = None  # while it decodes
        self.is_loaded = False  # what it fetches is here
        self.may_fetch = True  # nothing that it fetched was lost
        self.is_dropped = False  # nobody wants it any more, but what it fetches is under way
        self.cached_tokens = 0
        self.preemptions = 0
        self.recomputed_tokens = 0

    @property
    def tokens(self) -> int:
        return self.prompt_tokens + self.generated

    @property
    def lacking(self) -> int:
        """Tokens to compute until the next one of the answer is known."""
        return self.prompt_tokens + self.generated - self.computed

    @property
    def can_decode(self) -> bool:
        """Whether only the newest token of the answer is not computed yet."""
        return self.generated > 0 and self.prompt_tokens + self.generated - self.computed == 1

    def contents_of(self, first: int, end: int) -> Contents:
        """Return the contents of its blocks from number `first` up to `end`; they must be full."""
        if self.contents is None:
            return []
        if end <= self.prompt_blocks or self.is_answer_known:
            return part_of(self.contents, first, end)
        answer = answer_contents(self.number, max(first, self.prompt_blocks), end)
        return [*part_of(self.contents, first, self.prompt_blocks), answer]
