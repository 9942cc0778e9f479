"""Ancestor queries in a tree of calls."""


class Ancestry:
    """A tree that grows at its leaves, with ancestor queries in O(log n).

    In addition to its caller, each call stores one ancestor further up (its jump), chosen so that
    any ancestor is reached in O(log n) jumps (E. Myers, "An applicative random-access stack",
    1983). None is the root, above all calls.
    """

    def __init__(self) -> None:
        self._depth: dict[str | None, int] = {None: 0}
        self._caller: dict[str | None, str | None] = {None: None}
        self._jump: dict[str | None, str | None] = {None: None}

    def add(self, call: str, caller: str | None) -> None:
        """Add a new call below `caller`: a call added before, or None for the root."""
        near = self._jump[caller]
        far = self._jump[near]
        even = self._depth[caller] - self._depth[near] == self._depth[near] - self._depth[far]
        self._depth[call] = self._depth[caller] + 1
        self._caller[call] = caller
        self._jump[call] = far if even else caller

    def caller(self, call: str) -> str | None:
        return self._caller[call]

    def is_above(self, upper: str | None, call: str | None) -> bool:
        """Return whether `upper` is the call itself or one of its ancestors."""
        return self._climb(call, self._depth[upper]) == upper

    def meeting(self, calls: tuple[str, ...]) -> str | None:
        """Return the caller under which to place a call that follows all of `calls`.

        Only the calls that no other of them follows count; the result is the lowest of their common
        ancestors or themselves. For a chain this is its last call, and without calls None.
        """
        deepest_first = sorted(calls, key=lambda call: -self._depth[call])
        meeting: str | None = deepest_first[0] if calls else None
        for call in deepest_first:
            if not self.is_above(call, meeting):
                meeting = self._nearest_above(call, meeting)
        return meeting

    def _nearest_above(self, one: str | None, other: str | None) -> str | None:
        one = self._climb(one, self._depth[other])
        other = self._climb(other, self._depth[one])
        while one != other:
            step = self._jump if self._jump[one] != self._jump[other] else self._caller
            one, other = step[one], step[other]
        return one

    def _climb(self, call: str | None, depth: int) -> str | None:
        """Return the ancestor at `depth`, or the call itself if its depth is at most that."""
        while self._depth[call] > depth:
            jump = self._jump[call]
            call = jump if self._depth[jump] >= depth else self._caller[call]
        return call
