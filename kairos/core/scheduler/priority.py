"""A call's place inside an engine that orders by priority (vLLM: lower goes first)."""

import math

from kairos.core.events import Reason
from kairos.core.model import SECOND

LOWEST = 1000
_PER_DOUBLING = 40


def priority_of(remaining_us: float, reason: Reason) -> int:
    """0 to `LOWEST`: by the logarithm of the work that its workflow has left, a step for each 1.7 %
    from a tenth of a second on; what is overdue or was returned comes first. Calls keep it
    while they run, so it is the same scale for all instances and all times. Ours."""
    if reason in ("overdue", "returned"):
        return 0
    steps = _PER_DOUBLING * math.log2(max(1.0, 10 * remaining_us / SECOND))
    return min(LOWEST, 1 + int(steps))
