"""Factory of wait queues, with the current policy and its limits."""

from collections.abc import Callable
from itertools import count

from kairos.core.scheduler.guard import MakeGuard
from kairos.core.scheduler.policies import Policy
from kairos.core.scheduler.queue import WaitQueue
from kairos.core.scheduler.work_estimates import WorkEstimates


class Ordering:
    """Factory of queues that share one numbering of arrivals."""

    def __init__(
        self,
        policy: Callable[[WorkEstimates], Policy],
        estimates: WorkEstimates,
        guard: MakeGuard,
        backfill: int,
        passed_over: float,
    ) -> None:
        """Set the policy and the limits of future queues.

        Args:
            policy: creates the policy.
            estimates: estimates of work.
            guard: creates a queue's guard against starvation.
            backfill: see `WaitQueue`.
            passed_over: see `WaitQueue`.
        """
        self._policy, self._estimates, self._arrivals = policy(estimates), estimates, count()
        self._limits = guard, backfill, passed_over

    def choose(self, policy: Callable[[WorkEstimates], Policy]) -> None:
        """Set the policy of queues created from now on."""
        self._policy = policy(self._estimates)

    def new_queue(self, longest_us: int) -> WaitQueue:
        return WaitQueue(self._policy, self._estimates, self._arrivals, longest_us, *self._limits)
