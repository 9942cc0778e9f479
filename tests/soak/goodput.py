"""What was served, of what the engines that were well could have served.

These are thought of as one server that takes call after call, as they come, each for as long as
its share of an engine's time, and knows at once who is well. A call that would have to wait longer
for it than Kairos lets it, or than its client or its deadline does, could not have been served; nor
is one counted that leaves on purpose. Engines that are hurt may serve calls as well, and mostly do:
so the share can be above one.
"""

import math
from collections.abc import Iterable, Sequence

import msgspec

from tests.soak.asks import Ask
from tests.soak.client import Outcome
from tests.soak.turns import Change

_CALL_S = 1.0  # that a call runs at least before its deadline, as engines of a soak take for one
_WORK = {"well", "failing"}  # of an engine


class Goodput(msgspec.Struct, frozen=True):
    """Calls."""

    could: int
    did: int

    @property
    def share(self) -> float:
        return self.did / self.could


def goodput(
    outcomes: Iterable[Outcome], changes: Sequence[Change], *, calls_per_s: float, max_wait_s: float
) -> Goodput | None:
    """`changes`: how many engines were well; `calls_per_s`: of which one is capable. None of a run
    in which nothing could have been served."""
    server = _Server(changes, calls_per_s)
    could = did = 0
    for each in sorted(outcomes, key=lambda outcome: outcome.ask.at_s):
        ask = each.ask
        could_be = ask.kind in _WORK and server.serves(ask.at_s, _waits_s(ask, max_wait_s))
        if ask.kind == "well" and not ask.leaves:
            could += could_be
            did += _is_served(each)
    return Goodput(could, did) if could else None


def _waits_s(ask: Ask, max_wait_s: float) -> float:
    """For as long as that, at most, it makes sense to wait."""
    limit_s = ask.patience_s if ask.deadline_s is None else ask.deadline_s
    return min(max_wait_s, limit_s - _CALL_S)


def _is_served(outcome: Outcome) -> bool:
    deadline_s = outcome.ask.deadline_s
    return outcome.end == "answered" and (deadline_s is None or outcome.seconds <= deadline_s)


class _Server:
    """All that are well, as one."""

    def __init__(self, changes: Sequence[Change], calls_per_s: float) -> None:
        self._changes, self._calls_per_s = changes, calls_per_s
        self._free_at_s = 0.0
        self._now = 0  # the change of which `_free_at_s` is the time

    def serves(self, at_s: float, waits_s: float) -> bool:
        """Take the call that comes then, if it does not have to wait for longer."""
        if self._free_at_s - at_s > waits_s:
            return False
        self._pass(max(at_s, self._free_at_s))
        left = 1.0  # of the call
        while left > 0:
            rate = self._changes[self._now].well * self._calls_per_s
            ends_at_s = self._free_at_s + left / rate if rate else math.inf
            until_s = min(ends_at_s, self._next_s)
            left = 0.0 if until_s == ends_at_s else left - rate * (until_s - self._free_at_s)
            self._pass(until_s)
        return self._free_at_s < math.inf

    def _pass(self, at_s: float) -> None:
        self._free_at_s = at_s
        while self._now + 1 < len(self._changes) and self._next_s <= at_s:
            self._now += 1

    @property
    def _next_s(self) -> float:
        following = self._now + 1
        return self._changes[following].at_s if following < len(self._changes) else math.inf
