"""How suspicious a silence is, by how long silences were before.

After the phi accrual failure detector (Hayashibara, Défago, Yared, Katayama, "The phi accrual
failure detector", SRDS 2004): what is told is a level, not a verdict, and a level of phi says that
a silence as long as this comes of what is well once in 10 ** phi times. There the distribution of
silences is taken to be normal. Those of an engine are not: a burst of prompts, or a preemption,
makes some of them a hundred times as long as most. So nothing is assumed of their bulk. Of n
silences and one more, each is the longest with the same probability; and beyond the longest the
tail is taken to fall as that of a Pareto distribution does (Pickands 1975 has why tails look alike
far out; the index is our guess, tried by `python -m tests.simulation.pace`):

    P(silence > x) <= 1 / (n + 1) * (longest / x) ** TAIL        for x > longest
"""

import math

TAIL = 3.0
REMEMBERED = 1000  # silences, at least; of twice as many at most
# As long as fewer are known of one, it is judged by all, as if it might be that much slower.
FEW, SLOWER = 20, 3.0


class Silences:
    """The latest silences, as numbers, in a unit that makes them comparable. O(1)."""

    __slots__ = ("_all", "_count", "_earlier", "_earlier_count", "_longest")

    def __init__(self, of_all: "Silences | None" = None) -> None:
        """`of_all`: of which these are some."""
        self._all = of_all
        self._count = self._earlier_count = 0
        self._longest = self._earlier = 0.0

    def add(self, silence: float) -> None:
        """One that ended well; above 0."""
        if self._all is not None:
            self._all.add(silence)
        if self._count >= REMEMBERED:
            self._earlier, self._earlier_count = self._longest, self._count
            self._longest, self._count = 0.0, 0
        self._count += 1
        self._longest = max(self._longest, silence)

    def level(self, silence: float) -> float:
        """How suspicious one is that goes on: phi. 0: none was seen yet, or it was as long before.
        The longer, the more suspicious."""
        longest, count = max(self._longest, self._earlier), self._count + self._earlier_count
        if count < FEW and self._all is not None:
            return self._all.level(silence / SLOWER)
        if not count or silence <= longest:
            return 0.0
        return math.log10(count + 1) + TAIL * math.log10(silence / longest)
