"""Priority of a call inside an engine that orders by priority (vLLM: lower first)."""

import math

from kairos.core.events import Reason
from kairos.core.model import SECOND

LOWEST = 1000
_PER_DOUBLING = 40


def priority_of(remaining_us: float, reason: Reason) -> int:
    """Return a priority from 0 to `LOWEST`. Not in the paper.

    It is logarithmic in the workflow's remaining work, one step for each 1.7 % above a tenth of a
    second; overdue and returned calls get 0. Calls retain it while they run, so the scale is the
    same for all instances and times.
    """
    if reason in ("overdue", "returned"):
        return 0
    steps = _PER_DOUBLING * math.log2(max(1.0, 10 * remaining_us / SECOND))
    return min(LOWEST, 1 + int(steps))
