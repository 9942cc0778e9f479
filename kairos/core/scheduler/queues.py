"""All wait queues, one for each share of the pool and each model, and how quickly each drains."""

import math
from collections.abc import Iterable

from kairos.core.events import Reason
from kairos.core.model import SECOND, Request
from kairos.core.scheduler.fair_queueing import FairQueueing, Share
from kairos.core.scheduler.ordering import Ordering
from kairos.core.scheduler.policies import policy_named
from kairos.core.scheduler.queue import WaitQueue

_LONGEST_RETRY_S = 60
_RENEWED_AT_ONCE = 256  # keys, per fact, after new ranks: under 2 ms (`make bench`)
_KEPT = 256  # queues; beyond, those in which nothing waits are forgotten

Place = tuple[Share, str | None]  # what waits together: calls of one share, for one model


class WaitQueues:
    """`len` is of all that waits."""

    def __init__(self, ordering: Ordering, fairness: FairQueueing, max_wait_us: int) -> None:
        """`max_wait_us`: the longest wait where the class of service has none of its own."""
        self._ordering, self._max_wait_us = ordering, max_wait_us
        self.fairness = fairness
        self._queues: dict[Place, WaitQueue] = {}
        self._open: dict[Place, WaitQueue] = {}  # of these, those in which anything waits
        self.renewing: dict[Place, WaitQueue] = {}  # some of their keys are to be found anew
        self._waiting = 0
        self._of_tenant: dict[str, int] = {}  # where anything of theirs waits
        self._asked: Request | None = None  # what was asked for last is asked for several times
        self._its_place: Place = self.fairness.ALL, None

    def __len__(self) -> int:
        return self._waiting

    def of_tenant(self, tenant: str) -> int:
        return self._of_tenant.get(tenant, 0)

    def waiting_us(self) -> dict[str | None, int]:
        """Predicted work of the calls that wait, by model; nothing of those of which none does."""
        by_model: dict[str | None, int] = {}
        for (_, model), queue in self._open.items():
            by_model[model] = by_model.get(model, 0) + queue.waiting_us
        return by_model

    def of(self, request: Request) -> WaitQueue:
        """The queue in which it waits."""
        return self._queues[self._place(request)]

    def _place(self, request: Request) -> Place:
        if request is not self._asked:
            self._its_place = self.fairness.share_of(request), request.model
            self._asked = request
        return self._its_place

    def open(self) -> dict[Place, WaitQueue]:
        """Those in which anything waits, in the order in which they began to. The caller's to
        change."""
        return self._open.copy()

    def next_due_at(self) -> int | None:
        """When the next of those that wait will have done so for as long as it may."""
        due = [queue.oldest().arrived_at + queue.max_wait_us for queue in self._open.values()]
        return min(due, default=None)

    def push(self, request: Request, at: int) -> None:
        """One that arrives."""
        place = self._place(request)
        queue = self._queue_of(place)
        queue.push(request, at)
        self._came(place, queue, request.tenant, at)

    def push_back(self, request: Request, at: int, *, aside: bool = False) -> None:
        """One that was taken, and waits once more. `aside`: it has no turn for now."""
        place = self._place(request)
        queue = self._queue_of(place)
        queue.push_back(request, aside=aside)
        self._came(place, queue, request.tenant, at)

    def bring_back(self, request_id: str) -> None:
        """One that was aside has its turn, as any that was bounced."""
        place = next(place for place, queue in self._open.items() if request_id in queue)
        queue = self._open[place]
        queue.push_back(queue.remove(request_id))
        self._note_renewing(place, queue)

    def _queue_of(self, place: Place) -> WaitQueue:
        queue = self._queues.get(place)
        if queue is None:
            if len(self._queues) >= _KEPT:
                self._queues = self.open()
            queue = self._queues[place] = self._ordering.new_queue(self._longest_wait_us(place))
        return queue

    def _came(self, place: Place, queue: WaitQueue, tenant: str, at: int) -> None:
        self._waiting += 1
        self._of_tenant[tenant] = self._of_tenant.get(tenant, 0) + 1
        if len(queue) == 1:
            self._open[place] = queue
            self.fairness.came(place[0])
        self._note_renewing(place, queue)
        queue.drain.waits(at)

    def take(self, request: Request, at: int, cost_us: float, reason: Reason) -> None:
        """Take out a call that goes to an instance for this reason, at the expected cost."""
        share, _ = place = self._place(request)
        queue = self._queues[place]
        queue.take(request.id, reason)
        self.fairness.charge(share, cost_us)
        self._left(place, queue, request.tenant, at, counts=True)

    def remove(self, request: Request, at: int, *, counts: bool) -> None:
        """One that waits. `counts`: that it leaves says how quickly its queue drains."""
        place = self._place(request)
        queue = self._queues[place]
        queue.remove(request.id)
        self._left(place, queue, request.tenant, at, counts=counts)

    def _left(self, place: Place, queue: WaitQueue, tenant: str, at: int, *, counts: bool) -> None:
        self._waiting -= 1
        left = self._of_tenant.pop(tenant) - 1
        if left:
            self._of_tenant[tenant] = left
        is_empty = not queue
        if is_empty:
            del self._open[place]
            self.fairness.left(place[0])
        queue.drain.left(at, is_empty=is_empty, counts=counts)

    def rekey(self, requests: Iterable[Request]) -> None:
        """Something happened to the workflow of these, which wait, and may say more of them. They
        rest on the same state: where that of one is as it was, so is that of the others."""
        for request in requests:
            place = self._place(request)
            queue = self._queues[place]
            if not queue.rekey(request):
                return
            self._note_renewing(place, queue)

    def _note_renewing(self, place: Place, queue: WaitQueue) -> None:
        """What was pushed may have begun it."""
        if queue.by_key.moving:
            self.renewing[place] = queue

    def start_renewing(self) -> None:
        """What was learnt has changed: all keys are to be found anew, by and by."""
        for queue in self._open.values():
            queue.start_renewing()
        self.renewing = self._open.copy()

    def renew_some(self) -> None:
        for queue in self.renewing.values():
            queue.by_key.move(_RENEWED_AT_ONCE)
        self.renewing = {p: queue for p, queue in self.renewing.items() if queue.by_key.moving}

    def share_out(self, fairness: FairQueueing, at: int) -> None:
        """By other weights and classes from now on. Where a call then waits in another place, or
        for longer, all are put into queues anew: their order is as it was; the share of the
        overdue begins anew. O(n) of those that wait, or O(n log n)."""
        before, self.fairness, self._asked = self.fairness, fairness, None
        fairness.follow(before)
        if any(self._is_misplaced(place, queue) for place, queue in self._open.items()):
            self._put_anew(at)
        else:
            queues = self._queues.items()
            self._queues = {p: queue for p, queue in queues if not self._is_misplaced(p, queue)}
            for share, _ in self._open:
                fairness.came(share)
        fairness.go_on_from(before)

    def choose(self, policy: str, at: int) -> None:
        """Another policy from now on; raises SetupError. The share of the overdue begins anew.
        O(n log n) of those that wait."""
        self._ordering.choose(policy_named(policy))
        for share, _ in self._open:
            self.fairness.left(share)
        self._put_anew(at)

    def _is_misplaced(self, place: Place, queue: WaitQueue) -> bool:
        if queue.max_wait_us != self._longest_wait_us(place):
            return True
        return any(self._place(each) != place for each in queue.requests())

    def _longest_wait_us(self, place: Place) -> int:
        return self.fairness.max_wait_us(place[0]) or self._max_wait_us

    def _put_anew(self, at: int) -> None:
        """Those that were bounced last, as in each queue."""
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
                self._came(place, queue, request.tenant, at)
        for place, queue in self._queues.items():
            if place in before:
                queue.drain = before[place].drain

    def forget_pace(self) -> None:
        """There is more to serve them, so they drain as never before."""
        for queue in self._queues.values():
            queue.drain.forget()

    def wait_us(self, request: Request, at: int, *, worth_us: float) -> float:
        """For how long one that waits would go on waiting, by the order as it is and the pace of
        late; 0 where that is not known, or where even the last would wait less than `worth_us`."""
        place = self._place(request)
        queue = self._queues[place]
        each_us = queue.drain.each_us(at) if queue.drain.is_known else None
        if each_us is None or each_us * len(queue) < worth_us:
            return 0.0
        return each_us * queue.ahead_of(request.id)

    def retry_after_s(self, at: int) -> int:
        """When a tenth of all that waits will have gone, at the pace of late."""
        paces = [queue.drain.each_us(at) for queue in self._open.values()]
        per_us = sum((1 / each_us for each_us in paces if each_us), 0.0)
        if not per_us:
            return 1
        tenth_us = len(self) / 10 / per_us
        return min(max(1, math.ceil(tenth_us / SECOND)), _LONGEST_RETRY_S)
