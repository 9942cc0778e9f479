"""Keep static prefixes of prompts in engines' caches while a run makes no calls.

A run pauses while it waits for rows, for functions or for the next client. Engines evict the least
recently used blocks. The run knows what its own calls have written since a prefix was used last:
once that is half of the memory, the prefix may be gone, since instances of the pool are not equally
full. What others write is not known. So during a pause each prefix is touched again after two
checks, after four more, eight, and so on. A touch that finds it gone shows that it was evicted
within that time, and from then on no touch comes so late.

A touch of a cached prefix is one more sequence in a step; that is counted as 32 tokens and a
fiftieth of the prefix. It pays while the touches since the last use cost less than computing the
prefix: so a pause, however long, costs at most twice what its end would have cost without touches.
Not in the paper, which pins prefixes.
"""

from collections.abc import Iterator, Sequence

from kairos.workflows.compile.passes.static_prefixes import StaticPrefix
from kairos.workflows.execute.commands import TouchPrefix
from kairos.workflows.execute.facts import CallAnswered
from kairos.workflows.execute.limits import FlowLimits

_UNKNOWN_KV_TOKENS = 100_000  # of engines that do not report their memory
_SAFE = 0.5  # share of the memory
_FIRST = 2  # checks until the first touch
_CALL_TOKENS, _CACHED = 32, 0.02  # cost of a touch, and of each cached token


def touch_price(tokens: int) -> float:
    """Return what a touch of a beginning that is there costs an engine, in tokens."""
    return _CALL_TOKENS + _CACHED * tokens


class _Use:
    """Last use of a prefix, and what is known of how long it stays cached."""

    def __init__(self) -> None:
        self.at: int | None = None  # in tokens written by calls; None: never
        self.spent = 0.0  # tokens, cost of touches since then
        self.wait = self.left = _FIRST  # checks from a use to the next touch, and remaining ones
        self.longest: int | None = None  # checks after which it was still cached
        self.is_again = False  # the touch in flight may have found it cached

    @property
    def following(self) -> int:
        """Return the number of checks from a touch to the next."""
        return 2 * self.wait if self.longest is None else min(2 * self.wait, self.longest)

    def used(self, at: int) -> None:
        self.at, self.spent, self.is_again = at, 0.0, False
        self.wait = self.left = self._first

    @property
    def _first(self) -> int:
        return _FIRST if self.longest is None else min(_FIRST, self.longest)


class PrefixTouches:
    """Last uses of all static prefixes."""

    def __init__(self, prefixes: Sequence[StaticPrefix], limits: FlowLimits) -> None:
        is_limited = limits.max_calls is not None or limits.max_tokens is not None
        is_off = is_limited or not limits.caches_prefixes
        self._prefixes = () if is_off else prefixes  # a budget is for real calls
        self._of = {name: at for at, each in enumerate(self._prefixes) for name in each.operators}
        self._uses = [_Use() for _ in self._prefixes]
        self._written = 0
        self._safe_tokens = _SAFE * (limits.kv_tokens or _UNKNOWN_KV_TOKENS)

    def answered(self, operator: str, fact: CallAnswered) -> None:
        """Count a call, which has used its operator's prefix."""
        self._written += fact.prompt_tokens - fact.cached_tokens + fact.completion_tokens
        if (at := self._of.get(operator)) is not None:
            self._uses[at].used(self._written)

    def due(self, *, unused: bool = True) -> Iterator[TouchPrefix]:
        """Yield the touches at the start of a pause: of prefixes that may be gone.

        `unused`: also of prefixes that no call has used so far.
        """
        for at, use in enumerate(self._uses):
            is_old = use.at is not None and self._written - use.at >= self._safe_tokens
            if is_old or (use.at is None and unused):
                use.used(self._written)
                yield self._touch(at)

    def look(self) -> Iterator[TouchPrefix]:
        """Yield the touches that are due after one more check of the pause."""
        for at, (each, use) in enumerate(zip(self._prefixes, self._uses, strict=True)):
            price = touch_price(each.tokens)
            if use.at is None or use.spent + price > each.tokens:
                continue
            use.left -= 1
            if not use.left:
                use.spent += price
                use.is_again = True
                use.left = use.following
                yield self._touch(at)

    def touched(self, number: int, cached_tokens: int) -> None:
        """Learn from a touch whether the prefix was still cached."""
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
