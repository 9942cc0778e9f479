"""Keep static prefixes of prompts in engines' caches, for a run's pauses and for served flows.

A run pauses while it waits for rows, for functions or for the next client. Engines evict the least
recently used blocks. The run knows what its own calls have written since a prefix was used last:
once that is half of the memory, the prefix may be gone, since instances of the pool are not equally
full. What others write is not known. So during a pause each prefix is touched again after two
checks, after four more, eight, and so on. A touch that finds it gone shows that it was evicted
within that time, and from then on no touch comes so late (`PrefixTouches`).

A touch of a cached prefix is one more sequence in a step; that is counted as 32 tokens and a
fiftieth of the prefix. It pays while the touches since the last use cost less than computing the
prefix: so a pause, however long, costs at most twice what its end would have cost without touches.

Invocations of a served flow come one by one, and others use the engines between them. Its prefix is
worth a touch where gaps between invocations are longer than it stays cached, and not much longer.
Both are learnt (`ServedPrefix`): recent gaps, and the time within which the prefix must be used
again, from calls and touches that found it cached or did not. After a call as many touches follow
as would have saved most over the latest gaps, counted in tokens that engines compute. The cost of
touches beyond what they have saved is counted, too, and ends them when it comes to one prefix. So
slow flows, and busy ones, have no touches.

Not in the paper, which pins prefixes.
"""

from collections import deque
from collections.abc import Iterator, Sequence

from kairos.core import SECOND
from kairos.workflows.compile.passes.static_prefixes import StaticPrefix
from kairos.workflows.execute.commands import TouchPrefix
from kairos.workflows.execute.facts import CallAnswered
from kairos.workflows.execute.limits import FlowLimits

_UNKNOWN_KV_TOKENS = 100_000  # of engines that do not report their memory
_SAFE = 0.5  # share of the memory
_FIRST = 2  # checks until the first touch
_CALL_TOKENS, _CACHED = 32, 0.02  # cost of a touch, and of each cached token

_GAPS, _FEWEST = 32, 4  # that are remembered, and that must be known
_LEAST_US = SECOND  # from a use to a touch
_SAFE_WAIT = 0.5  # of a time after which it was lost
_LONGER_WAIT = 1.05  # that the next wait is, after one in which it was not lost
_WEIGHT = 0.05  # of the latest touch in the mean price
_MARGIN = 0.1  # of the prefix that each gap must save in the mean
_FORGOTTEN = 0.02  # of the prefix, of a loss with each gap
_MOST_GAINED = 2.0  # prefixes that count of a gain


def touch_price(tokens: int) -> float:
    """Return what a touch of a prefix that is cached costs an engine, in tokens."""
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

    def note_use(self, at: int) -> None:
        self.at, self.spent, self.is_again = at, 0.0, False
        self.wait = self.left = min(_FIRST, self.longest or _FIRST)


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

    def count_call(self, operator: str, fact: CallAnswered) -> None:
        """Count a call, which has used its operator's prefix."""
        self._written += fact.prompt_tokens - fact.cached_tokens + fact.completion_tokens
        if (at := self._of.get(operator)) is not None:
            self._uses[at].note_use(self._written)

    def begin_pause(self, *, unused: bool = True) -> Iterator[TouchPrefix]:
        """Yield the touches at the start of a pause: of prefixes that may be gone.

        `unused`: also of prefixes that no call has used so far.
        """
        for at, use in enumerate(self._uses):
            is_old = use.at is not None and self._written - use.at >= self._safe_tokens
            if is_old or (use.at is None and unused):
                use.note_use(self._written)
                yield self._touch(at)

    def check_pause(self) -> Iterator[TouchPrefix]:
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

    def on_touch_answer(self, number: int, cached_tokens: int) -> None:
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


class ServedPrefix:
    """Uses of one prefix of a served flow. Times are in µs from any zero."""

    def __init__(self, tokens: int) -> None:
        self.tokens = tokens
        self._gaps: deque[int] = deque(maxlen=_GAPS)
        self._called_at: int | None = None
        self._used_at = 0
        self._wait_us: int | None = None  # None: it was never lost
        self._is_reported = False  # engines say what they find
        self._price = touch_price(tokens)  # mean of touches
        self._left = 0  # touches until the next call
        self._gained = 0.0  # tokens by all touches; below 0 lost
        self._is_touched = False  # since the last call

    def on_call(self, began_at: int, at: int, cached_tokens: int) -> int | None:
        """Note a call that began with it. Return when to touch it next; None: not at all.

        Args:
            began_at: of the call's invocation.
            at: when the call ended, which is now.
            cached_tokens: of its prompt.
        """
        is_found = self._is_found(cached_tokens)
        self._is_reported |= is_found
        # Calls of one invocation, or of some at once, say nothing of how long it stays.
        if self._called_at is None or self._called_at <= began_at:
            if self._called_at is not None:
                self._count_gap(began_at - self._called_at, is_found=is_found)
                self._learn(began_at - self._used_at, is_found=is_found)
            self._left = self._planned()
            self._is_touched = False
        self._called_at = self._used_at = at
        return self._next_at()

    def on_touch(self, at: int, cached_tokens: int) -> int | None:
        """Note that a touch was answered. Return when the next is due; None: not at all."""
        is_found = self._is_found(cached_tokens)
        cost = touch_price(self.tokens) + (0 if is_found else self.tokens)
        self._price += _WEIGHT * (cost - self._price)
        self._gained -= cost
        self._is_touched = True
        if self._is_reported:
            self._learn(at - self._used_at, is_found=is_found)
        self._is_reported |= is_found
        self._used_at = at
        self._left = self._left - 1 if is_found else 0
        return self._next_at()

    def _count_gap(self, gap_us: int, *, is_found: bool) -> None:
        self._gaps.append(gap_us)
        if self._is_touched and is_found and self._wait_us is not None:
            self._gained += self._gain(int(gap_us / self._wait_us))
        if self._gained < 0:
            self._gained = min(0.0, self._gained + _FORGOTTEN * self.tokens)
        self._gained = min(self._gained, _MOST_GAINED * self.tokens)

    def _is_found(self, cached_tokens: int) -> bool:
        return 2 * cached_tokens >= self.tokens

    def _next_at(self) -> int | None:
        if self._left < 1 or self._wait_us is None:
            return None
        return self._used_at + (self._wait_us if self._is_reported else _LEAST_US)

    def _learn(self, idle_us: int, *, is_found: bool) -> None:
        if is_found:
            if self._wait_us is not None and idle_us >= self._wait_us:
                self._wait_us = round(self._wait_us * _LONGER_WAIT)
        elif idle_us >= _LEAST_US:
            safe_us = max(_LEAST_US, round(_SAFE_WAIT * idle_us))
            self._wait_us = safe_us if self._wait_us is None else min(self._wait_us, safe_us)

    def _planned(self) -> int:
        """Return the number of touches after a call that would have saved most lately."""
        if self._wait_us is None or len(self._gaps) < _FEWEST:
            return 0
        if self._gained <= -self.tokens:
            return 0
        needed = [int(gap / self._wait_us) for gap in self._gaps]
        most = self.tokens / touch_price(self.tokens)  # more cost as much as to compute it
        best, best_saved = 0, _MARGIN * self.tokens * len(needed)
        for count in {each for each in needed if 1 <= each <= most}:
            saved = sum(self._saved(each, count) for each in needed)
            if saved > best_saved:
                best, best_saved = count, saved
        # The first one follows at once, and tells whether engines report what they find.
        return best if self._is_reported else min(1, best)

    def _saved(self, needed: int, count: int) -> float:
        """Return the tokens that up to `count` touches save in a gap that needs some."""
        if needed > count:
            return -count * self._price
        return self._gain(needed) - needed * self._price

    def _gain(self, waits: int) -> float:
        """Return the tokens that a call finds cached by touches, after that number of waits.

        After one wait a prefix is as likely to be there still as not.
        """
        return self.tokens * min(1.0, waits / 2)
