"""Who is above whom in a tree of calls."""


class Ancestry:
    """A tree that grows at its leaves; asking about two of its calls is O(log n).

    Beside its caller each call knows one ancestor further up, chosen so that any ancestor is
    reached in O(log n) jumps (E. Myers, "An applicative random-access stack", 1983). None, the
    outside, is above all.
    """

    def __init__(self) -> None:
        self._depth: dict[str | None, int] = {None: 0}
        self._caller: dict[str | None, str | None] = {None: None}
        self._jump: dict[str | None, str | None] = {None: None}

    def add(self, call: str, caller: str | None) -> None:
        """`caller` is None or was added before, `call` is new."""
        near = self._jump[caller]
        far = self._jump[near]
        even = self._depth[caller] - self._depth[near] == self._depth[near] - self._depth[far]
        self._depth[call] = self._depth[caller] + 1
        self._caller[call] = caller
        self._jump[call] = far if even else caller

    def caller(self, call: str) -> str | None:
        return self._caller[call]

    def is_above(self, upper: str | None, call: str | None) -> bool:
        """Whether `upper` is the call itself or one of its ancestors."""
        return self._climb(call, self._depth[upper]) == upper

    def meeting(self, calls: tuple[str, ...]) -> str | None:
        """Where a call sits that follows all of these: the nearest call above those that no other
        of them follows. That is the last one, where they are a chain; None where there are none.
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
        """The ancestor at that depth, or the call itself where it is not that deep."""
        while self._depth[call] > depth:
            jump = self._jump[call]
            call = jump if self._depth[jump] >= depth else self._caller[call]
        return call
