"""Scaling by what will be in flight, as one decides who has seen the day already: how much there is
to save. It is no proven bound: with the same knowledge one could still decide otherwise."""

import math
from collections.abc import Mapping
from statistics import fmean

from experiments.autoscaled import PoolSeen

AROUND_S = 150.0  # before an instant, and after: over so long calls in flight are a mean
SLACK = 0.1  # of an instance: so much more is not worth starting one


class HindsightScaler:
    """So many calls to an instance, of those that were in flight where there were always enough
    instances. One is started so early that it serves when it is needed, and drained when it is not
    needed for as long as starting it again would take."""

    def __init__(
        self,
        in_flight: Mapping[int, int],
        calls: float,
        *,
        start_s: float,
        every_s: int,
        most: int,
    ) -> None:
        """`in_flight`: calls, by the second; each `every_s`."""
        self._in_flight, self._calls = in_flight, calls
        self._start_s, self._every_s, self._most = start_s, every_s, most

    def _needed(self, at_s: int) -> int:
        around = round(AROUND_S / self._every_s) * self._every_s
        seconds = range(at_s - around, at_s + around + 1, self._every_s)
        calls = fmean(self._in_flight.get(each, 0) for each in seconds)
        return max(1, min(self._most, math.ceil(calls / self._calls - SLACK)))

    def __call__(self, seen: PoolSeen) -> int:
        at_s, there = round(seen.look.at_s), seen.serving + seen.starting
        steps = math.ceil(self._start_s / self._every_s)
        needs = [self._needed(at_s + step * self._every_s) for step in range(steps + 1)]
        if needs[-1] > there:
            return needs[-1] - there
        return min(0, max(needs) - there)
