"""Suspicion of a silence, from the lengths of earlier silences.

After the phi accrual failure detector (Hayashibara, Défago, Yared, Katayama, "The phi accrual
failure detector", SRDS 2004): the result is a level, not a verdict, and a level of phi means that a
healthy call is silent this long once in 10 ** phi times. There, silences are assumed to be normally
distributed. Silences of an engine are not: a burst of prompts, or a preemption, makes some of them
a hundred times as long as most. So nothing is assumed about their bulk. Of n silences and one more,
each is the longest with equal probability; and beyond the longest the tail is assumed to fall like
that of a Pareto distribution (Pickands 1975 explains why tails are similar far out; the index is
our guess, tested by `python -m tests.simulation.simulate.pace`):

    P(silence > x) <= 1 / (n + 1) * (longest / x) ** TAIL        for x > longest
"""

import math

TAIL = 3.0
REMEMBERED = 1000  # silences used at least; at most twice as many
# With fewer silences than this, an instance is judged by those of all, allowing for this factor.
FEW, SLOWER = 20, 3.0


class Silences:
    """The latest silences, in any unit that makes them comparable. O(1)."""

    __slots__ = ("_all", "_count", "_earlier", "_earlier_count", "_longest")

    def __init__(self, of_all: "Silences | None" = None) -> None:
        """Start without silences. `of_all`, of all instances, gets each of them, too."""
        self._all = of_all
        self._count = self._earlier_count = 0
        self._longest = self._earlier = 0.0

    def add(self, silence: float) -> None:
        """Record a silence, above 0, that ended well."""
        if self._all is not None:
            self._all.add(silence)
        if self._count >= REMEMBERED:
            self._earlier, self._earlier_count = self._longest, self._count
            self._longest, self._count = 0.0, 0
        self._count += 1
        self._longest = max(self._longest, silence)

    def level(self, silence: float) -> float:
        """Return the suspicion phi of a silence that goes on; it grows with the silence.

        0 if no silence is known, or an earlier one was as long.
        """
        longest, count = max(self._longest, self._earlier), self._count + self._earlier_count
        if count < FEW and self._all is not None:
            return self._all.level(silence / SLOWER)
        if not count or silence <= longest:
            return 0.0
        return math.log10(count + 1) + TAIL * math.log10(silence / longest)
