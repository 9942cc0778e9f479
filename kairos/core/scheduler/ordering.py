"""What wait queues are made with: the policy, and what bounds it; another policy makes others."""

from collections.abc import Callable
from itertools import count

from kairos.core.scheduler.guard import MakeGuard
from kairos.core.scheduler.policies import Policy
from kairos.core.scheduler.queue import WaitQueue
from kairos.core.scheduler.work_estimates import WorkEstimates


class Ordering:
    """Calls in all its queues are numbered together as they arrive, whatever the policy."""

    def __init__(
        self,
        policy: Callable[[WorkEstimates], Policy],
        estimates: WorkEstimates,
        guard: MakeGuard,
        backfill: int,
        passed_over: float,
    ) -> None:
        """The last three: see the queue."""
        self._policy, self._estimates, self._arrivals = policy(estimates), estimates, count()
        self._limits = guard, backfill, passed_over

    def choose(self, policy: Callable[[WorkEstimates], Policy]) -> None:
        """Of the queues that are made from now on."""
        self._policy = policy(self._estimates)

    def new_queue(self, longest_us: int) -> WaitQueue:
        return WaitQueue(self._policy, self._estimates, self._arrivals, longest_us, *self._limits)
