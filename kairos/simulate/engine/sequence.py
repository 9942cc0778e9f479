"""A call inside an engine."""

from kairos.simulate.engine.blocks import Contents, answer_contents, part_of
from kairos.simulate.engine.engine_calls import EngineCall


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
