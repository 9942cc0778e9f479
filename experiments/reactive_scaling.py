"""Scaling by what is seen now, as autoscalers of Kubernetes do it: what `e37_autoscaling` compares
with."""

import math
from collections import deque

from experiments.autoscaled import PoolSeen

TOLERANCE = 0.1  # of the Horizontal Pod Autoscaler: so near to the target it changes nothing


class QueueScaler:
    """By the queue's length: one instance more for each `calls` that wait beyond what those that
    start will take; one fewer when none has waited for `quiet_s`, and again after as long."""

    def __init__(self, calls: int, quiet_s: float, *, most: int) -> None:
        self._calls, self._quiet_s, self._most = calls, quiet_s, most
        self._quiet_since: float | None = None

    def __call__(self, seen: PoolSeen) -> int:
        at_s, there = seen.look.at_s, seen.serving + seen.starting
        if seen.waiting:
            self._quiet_since = None
            wanted = math.ceil(seen.waiting / self._calls) - seen.starting
            return max(0, min(wanted, self._most - there))
        if self._quiet_since is None:
            self._quiet_since = at_s
        if at_s < self._quiet_since + self._quiet_s or there <= 1:
            return 0
        self._quiet_since = at_s
        return -1


class InFlightScaler:
    """By calls that wait or run, as the Horizontal Pod Autoscaler reckons (and KEDA has it reckon):
    so many to an instance, within the tolerance; down to no less than was wanted in `window_s`."""

    def __init__(self, calls: float, window_s: float, *, most: int) -> None:
        self._calls, self._window_s, self._most = calls, window_s, most
        self._wanted: deque[tuple[float, int]] = deque()

    def __call__(self, seen: PoolSeen) -> int:
        at_s, there = seen.look.at_s, seen.serving + seen.starting
        ratio = (seen.waiting + seen.look.running) / self._calls
        wanted = there if abs(ratio / there - 1) <= TOLERANCE else math.ceil(ratio)
        wanted = max(1, min(self._most, wanted))
        self._wanted.append((at_s, wanted))
        while self._wanted[0][0] < at_s - self._window_s:
            self._wanted.popleft()
        if wanted < there:
            wanted = min(there, max(each for _, each in self._wanted))
        return wanted - there
