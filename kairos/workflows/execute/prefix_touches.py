"""Touches keep static beginnings of prompts in engines' caches while a run asks nothing of them.

A run pauses while it waits for rows, for functions or for the next client. An engine drops what was
used longest ago. What the run's own calls have written since a beginning was used last is known:
once that is half of the memory, it may be gone, for other instances of the pool are not equally
full. What others write is not known. So while a pause lasts each beginning is used again after two
looks, after four more, eight, and on. A touch that finds it gone tells that it was dropped within
that time, and from then on no touch comes so late.

A touch of what is there is one more sequence in a step; that is counted as 32 tokens and a
fiftieth of the beginning. It pays while the touches since the last use cost less than to compute
the beginning: so a pause, however long, costs at most twice what its end would have cost without
touches. Not in the paper, which pins beginnings.
"""

from collections.abc import Iterator, Sequence

from kairos.workflows.compile.passes.static_prefixes import StaticPrefix
from kairos.workflows.execute.commands import TouchPrefix
from kairos.workflows.execute.facts import CallAnswered
from kairos.workflows.execute.limits import FlowLimits

_UNKNOWN_KV_TOKENS = 100_000  # of engines that do not tell how much they hold
_SAFE = 0.5  # of the memory
_FIRST = 2  # looks until the first touch
_CALL_TOKENS, _CACHED = 32, 0.02  # what a touch costs at least, and for each token that is there


class _Use:
    """The last use of a beginning, and what is known of how long it stays."""

    def __init__(self) -> None:
        self.at: int | None = None  # in tokens that calls have written; None: never
        self.spent = 0.0  # tokens that touches since then have cost
        self.wait = self.left = _FIRST  # looks from a use to the next touch, and those to come
        self.longest: int | None = None  # after which it was not gone
        self.is_again = False  # the touch under way: it may have been there

    @property
    def following(self) -> int:
        """Looks from a touch to the next."""
        return 2 * self.wait if self.longest is None else min(2 * self.wait, self.longest)

    def used(self, at: int) -> None:
        self.at, self.spent, self.is_again = at, 0.0, False
        self.wait = self.left = self._first

    @property
    def _first(self) -> int:
        return _FIRST if self.longest is None else min(_FIRST, self.longest)


class PrefixTouches:
    """Owns when each was used last."""

    def __init__(self, prefixes: Sequence[StaticPrefix], limits: FlowLimits) -> None:
        is_limited = limits.max_calls is not None or limits.max_tokens is not None
        is_off = is_limited or not limits.caches_prefixes
        self._prefixes = () if is_off else prefixes  # a budget is for what is asked
        self._of = {name: at for at, each in enumerate(self._prefixes) for name in each.operators}
        self._uses = [_Use() for _ in self._prefixes]
        self._written = 0
        self._safe_tokens = _SAFE * (limits.kv_tokens or _UNKNOWN_KV_TOKENS)

    def answered(self, operator: str, fact: CallAnswered) -> None:
        """A call of it has used its beginning."""
        self._written += fact.prompt_tokens - fact.cached_tokens + fact.completion_tokens
        if (at := self._of.get(operator)) is not None:
            self._uses[at].used(self._written)

    def due(self, *, unused: bool = True) -> Iterator[TouchPrefix]:
        """Yield touches that a pause begins with: of beginnings that may be gone.

        `unused`: also of beginnings that no call has used so far.
        """
        for at, use in enumerate(self._uses):
            is_old = use.at is not None and self._written - use.at >= self._safe_tokens
            if is_old or (use.at is None and unused):
                use.used(self._written)
                yield self._touch(at)

    def look(self) -> Iterator[TouchPrefix]:
        """Yield touches that are due, now that the pause has lasted for one look more."""
        for at, (each, use) in enumerate(zip(self._prefixes, self._uses, strict=True)):
            price = _CALL_TOKENS + _CACHED * each.tokens
            if use.at is None or use.spent + price > each.tokens:
                continue
            use.left -= 1
            if not use.left:
                use.spent += price
                use.is_again = True
                use.left = use.following
                yield self._touch(at)

    def touched(self, number: int, cached_tokens: int) -> None:
        """Learn whether a beginning was there still."""
        use, tokens = self._uses[number], self._prefixes[number].tokens
        if use.is_again and 2 * cached_tokens < tokens:
            use.spent += tokens
            use.longest = max(1, use.wait // 2)
            use.wait = use.left = use.longest
        elif use.is_again:
            use.wait = use.following
        use.is_again = False

    def _touch(self, number: int) -> TouchPrefix:
        each = self._prefixes[number]
        return TouchPrefix(each.operators[0], each.model, each.body, number)
