"""All wait queues, one per share of the pool and model, with the drain rate of each."""

import math
from collections.abc import Callable, Iterable
from itertools import count

from kairos.core.events import Reason
from kairos.core.model import SECOND, Request
from kairos.core.scheduler.fair_queueing import FairQueueing, Share
from kairos.core.scheduler.guard import MakeGuard
from kairos.core.scheduler.policies import Policy, policy_named
from kairos.core.scheduler.queue import WaitQueue
from kairos.core.scheduler.work_estimates import WorkEstimates

_LONGEST_RETRY_S = 60
_RENEWED_AT_ONCE = 256  # keys renewed per fact after learning: under 2 ms (`make bench`)
_KEPT = 256  # number of queues beyond which empty ones are dropped

Place = tuple[Share, str | None]  # key of a queue: share and model


class WaitQueues:
    """All wait queues. `len` is the number of waiting requests."""

    def __init__(
        self,
        policy: Callable[[WorkEstimates], Policy],
        estimates: WorkEstimates,
        fairness: FairQueueing,
        *,
        max_wait_us: int,
        guard: MakeGuard,
        backfill: int,
        passed_over: float,
    ) -> None:
        """Start without queues; they are created as they are needed.

        `max_wait_us` is for classes of service without a maximum of their own. `backfill` and
        `passed_over`: see `WaitQueue`.
        """
        self._policy, self._estimates = policy(estimates), estimates
        self._arrivals = count()  # one numbering for all queues
        self._limits = guard, backfill, passed_over
        self._max_wait_us = max_wait_us
        self.fairness = fairness
        self._queues: dict[Place, WaitQueue] = {}
        self._open: dict[Place, WaitQueue] = {}  # the non-empty ones
        self.renewing: dict[Place, WaitQueue] = {}  # queues with keys to be recomputed
        self._waiting = 0
        self._of_tenant: dict[str, int] = {}  # number of waiting requests by tenant
        self._asked: Request | None = None  # the request last looked up; often asked for again
        self._its_place: Place = self.fairness.ALL, None

    def __len__(self) -> int:
        return self._waiting

    def of_tenant(self, tenant: str) -> int:
        return self._of_tenant.get(tenant, 0)

    def waiting_us(self) -> dict[str | None, int]:
        """Return the predicted work of waiting calls by model, for models with waiting calls."""
        by_model: dict[str | None, int] = {}
        for (_, model), queue in self._open.items():
            by_model[model] = by_model.get(model, 0) + queue.waiting_us
        return by_model

    def of(self, request: Request) -> WaitQueue:
        """Return the queue in which the request waits."""
        return self._queues[self._place(request)]

    def _place(self, request: Request) -> Place:
        if request is not self._asked:
            self._its_place = self.fairness.share_of(request), request.model
            self._asked = request
        return self._its_place

    def open(self) -> dict[Place, WaitQueue]:
        """Return a copy of the non-empty queues, in the order in which they became non-empty."""
        return self._open.copy()

    def next_due_at(self) -> int | None:
        """Return when the next waiting request reaches its maximum wait; None without requests."""
        due = [queue.oldest().arrived_at + queue.max_wait_us for queue in self._open.values()]
        return min(due, default=None)

    def push(self, request: Request, at: int) -> None:
        """Add an arriving request."""
        place = self._place(request)
        queue = self._queue_of(place)
        queue.push(request, at)
        self._note_waiting(place, queue, request.tenant, at)

    def push_back(self, request: Request, at: int, *, aside: bool = False) -> None:
        """Add a bounced request again.

        With `aside`, quarantine it: it is not dispatched for now.
        """
        place = self._place(request)
        queue = self._queue_of(place)
        queue.push_back(request, aside=aside)
        self._note_waiting(place, queue, request.tenant, at)

    def bring_back(self, request_id: str) -> None:
        """Release a quarantined request, which is then queued like any bounced one."""
        place = next(place for place, queue in self._open.items() if request_id in queue)
        queue = self._open[place]
        queue.push_back(queue.remove(request_id))
        self._note_renewing(place, queue)

    def _queue_of(self, place: Place) -> WaitQueue:
        queue = self._queues.get(place)
        if queue is None:
            if len(self._queues) >= _KEPT:
                self._queues = self.open()
            queue = self._queues[place] = self._new_queue(place)
        return queue

    def _new_queue(self, place: Place) -> WaitQueue:
        longest_us = self._longest_wait_us(place)
        return WaitQueue(self._policy, self._estimates, self._arrivals, longest_us, *self._limits)

    def _note_waiting(self, place: Place, queue: WaitQueue, tenant: str, at: int) -> None:
        self._waiting += 1
        self._of_tenant[tenant] = self._of_tenant.get(tenant, 0) + 1
        if len(queue) == 1:
            self._open[place] = queue
            self.fairness.open_queue(place[0])
        self._note_renewing(place, queue)
        queue.drain.note_waiting(at)

    def dispatch_call(self, request: Request, at: int, cost_us: float, reason: Reason) -> None:
        """Remove a call that is dispatched for this reason, and charge its expected cost."""
        share, _ = place = self._place(request)
        queue = self._queues[place]
        queue.pop_dispatched(request.id, reason)
        self.fairness.charge(share, cost_us)
        self._note_departure(place, queue, request.tenant, at, counts=True)

    def remove(self, request: Request, at: int, *, counts: bool) -> None:
        """Remove a waiting request. `counts`: its departure counts for the queue's drain rate."""
        place = self._place(request)
        queue = self._queues[place]
        queue.remove(request.id)
        self._note_departure(place, queue, request.tenant, at, counts=counts)

    def _note_departure(
        self, place: Place, queue: WaitQueue, tenant: str, at: int, *, counts: bool
    ) -> None:
        self._waiting -= 1
        left = self._of_tenant.pop(tenant) - 1
        if left:
            self._of_tenant[tenant] = left
        is_empty = not queue
        if is_empty:
            del self._open[place]
            self.fairness.close_queue(place[0])
        queue.drain.count_departure(at, is_empty=is_empty, counts=counts)

    def rekey(self, requests: Iterable[Request]) -> None:
        """Update the keys of waiting requests of one workflow, after a fact about it.

        Their keys depend on the same state, so if one is unchanged, the others are too.
        """
        for request in requests:
            place = self._place(request)
            queue = self._queues[place]
            if not queue.rekey(request):
                return
            self._note_renewing(place, queue)

    def _note_renewing(self, place: Place, queue: WaitQueue) -> None:
        """Track a queue in which a push has started a renewal of keys."""
        if queue.by_key.moving:
            self.renewing[place] = queue

    def start_renewing(self) -> None:
        """Start to recompute all keys gradually, after learning."""
        for queue in self._open.values():
            queue.start_renewing()
        self.renewing = self._open.copy()

    def renew_some(self) -> None:
        for queue in self.renewing.values():
            queue.by_key.move(_RENEWED_AT_ONCE)
        self.renewing = {p: queue for p, queue in self.renewing.items() if queue.by_key.moving}

    def share_out(self, fairness: FairQueueing, at: int) -> None:
        """Apply other weights and classes.

        If a call then belongs in another queue, or has another maximum wait, all calls are queued
        again in their present order, and the guard's share of overdue calls starts from zero. O(n)
        of the waiting calls, or O(n log n) if they are queued again.
        """
        before, self.fairness, self._asked = self.fairness, fairness, None
        fairness.follow(before)
        if any(self._is_misplaced(place, queue) for place, queue in self._open.items()):
            self._requeue_all(at)
        else:
            queues = self._queues.items()
            self._queues = {p: queue for p, queue in queues if not self._is_misplaced(p, queue)}
            for share, _ in self._open:
                fairness.open_queue(share)
        fairness.go_on_from(before)

    def apply_policy(self, policy: str, at: int) -> None:
        """Apply another policy, queueing all calls again in O(n log n).

        The guard's share of overdue calls starts from zero.

        Raises:
            SetupError: the policy is unknown.
        """
        self._policy = policy_named(policy)(self._estimates)
        for share, _ in self._open:
            self.fairness.close_queue(share)
        self._requeue_all(at)

    def _is_misplaced(self, place: Place, queue: WaitQueue) -> bool:
        if queue.max_wait_us != self._longest_wait_us(place):
            return True
        return any(self._place(each) != place for each in queue.requests())

    def _longest_wait_us(self, place: Place) -> int:
        return self.fairness.max_wait_us(place[0]) or self._max_wait_us

    def _requeue_all(self, at: int) -> None:
        """Queue all waiting calls again, bounced ones last, as in each queue."""
        waiting = [each for queue in self._open.values() for each in queue.standings()]
        before = self._open
        self._queues, self._open, self.renewing = {}, {}, {}
        self._waiting, self._of_tenant = 0, {}
        for each in sorted(waiting, key=lambda each: (each.is_bounced, each.seq)):
            request = each.request
            if each.is_bounced:
                self.push_back(request, at, aside=each.aside)
            else:
                place = self._place(request)
                queue = self._queue_of(place)
                queue.push(request, request.arrived_at)
                self._note_waiting(place, queue, request.tenant, at)
        for place, queue in self._queues.items():
            if place in before:
                queue.drain = before[place].drain

    def forget_pace(self) -> None:
        """Forget all drain rates, because the pool's capacity has grown."""
        for queue in self._queues.values():
            queue.drain.forget_departures()

    def wait_us(self, request: Request, at: int, *, worth_us: float) -> float:
        """Estimate how long a waiting request would still wait, from the order and drain rate.

        0 if that is unknown, or if even the last request would wait less than `worth_us`.
        """
        place = self._place(request)
        queue = self._queues[place]
        each_us = queue.drain.each_us(at) if queue.drain.is_known else None
        if each_us is None or each_us * len(queue) < worth_us:
            return 0.0
        return each_us * queue.ahead_of(request.id)

    def retry_after_s(self, at: int) -> int:
        """Return the seconds until a tenth of the waiting requests has left, at the recent rate."""
        paces = [queue.drain.each_us(at) for queue in self._open.values()]
        per_us = sum((1 / each_us for each_us in paces if each_us), 0.0)
        if not per_us:
            return 1
        tenth_us = len(self) / 10 / per_us
        return min(max(1, math.ceil(tenth_us / SECOND)), _LONGEST_RETRY_S)
