"""Decide when the static beginning of a served flow's prompts is used again between invocations.

Invocations come one by one, and others use the engines between them. A beginning is worth a touch
where gaps between invocations are longer than it stays in a cache, and not much longer. Both are
learnt: gaps as they were lately, and the time within which a beginning must be used again from
calls and touches that found it or did not. After a call as many touches follow as would have saved
most over the latest gaps, counted in tokens that engines compute; none where none would have saved
anything. What touches have cost beyond what they have saved is counted, too, and ends them when it
comes to one beginning. So slow flows, and busy ones, have no touches. Not in the paper, which pins
beginnings.
"""

from collections import deque

from kairos.core import SECOND
from kairos.workflows.execute.prefix_touches import touch_price

_GAPS, _FEWEST = 32, 4  # that are remembered, and that must be known
_LEAST_US = SECOND  # from a use to a touch
_SAFE = 0.5  # of a time after which it was lost
_LONGER = 1.05  # that the next wait is, after one in which it was not lost
_WEIGHT = 0.05  # of the latest touch in the mean price
_MARGIN = 0.1  # of the beginning that each gap must save in the mean
_FORGOTTEN = 0.02  # of the beginning, of a loss with each gap
_MOST_GAINED = 2.0  # beginnings that count of a gain


class ServedPrefix:
    """Owns what is known of one beginning. Times are in µs from any zero."""

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

    def called(self, began_at: int, at: int, cached_tokens: int) -> int | None:
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

    def touched(self, at: int, cached_tokens: int) -> int | None:
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
                self._wait_us = round(self._wait_us * _LONGER)
        elif idle_us >= _LEAST_US:
            safe_us = max(_LEAST_US, round(_SAFE * idle_us))
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
        """Return the tokens that a call finds by touches, that number of waits after the last.

        After one wait a beginning is as likely to be there still as not.
        """
        return self.tokens * min(1.0, waits / 2)
