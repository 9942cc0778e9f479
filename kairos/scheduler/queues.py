"""The wait queues of all models, and how quickly each drains."""

import math
from collections.abc import Callable, Iterable

from kairos.model import SECOND, Request
from kairos.scheduler.drain import DrainRate
from kairos.scheduler.queue import WaitQueue

_LONGEST_RETRY_S = 60


class WaitQueues:
    """Of every model that something waited for; `len` is of all that waits."""

    def __init__(self, new_queue: Callable[[], WaitQueue]) -> None:
        self._new_queue = new_queue
        self.by_model: dict[str | None, WaitQueue] = {}
        self._drains: dict[str | None, DrainRate] = {}  # of the same models
        self._open: dict[str | None, WaitQueue] = {}  # of these, those in which anything waits
        self._waiting = 0

    def __len__(self) -> int:
        return self._waiting

    def __contains__(self, request: Request) -> bool:
        return request.model in self.by_model and request.id in self.by_model[request.model]

    def open(self) -> dict[str | None, WaitQueue]:
        """Those in which anything waits, in the order in which their models were first asked for.
        The caller's to change."""
        if len(self._open) < 2:
            return self._open.copy()
        return {model: queue for model, queue in self.by_model.items() if queue}

    def oldest_at(self) -> int | None:
        """When the first of those that wait arrived."""
        oldest = (queue.oldest().arrived_at for queue in self._open.values())
        return min(oldest, default=None)

    def push(self, request: Request, at: int) -> None:
        """One that arrives."""
        self._queue_of(request).push(request, at)
        self._came(request.model, at)

    def push_back(self, request: Request, at: int, *, aside: bool = False) -> None:
        """One that was taken, and waits once more. `aside`: it has no turn for now."""
        self._queue_of(request).push_back(request, aside=aside)
        self._came(request.model, at)

    def bring_back(self, request: Request) -> None:
        """One that was aside has its turn, as any that was bounced."""
        queue = self.by_model[request.model]
        queue.remove(request.id)
        queue.push_back(request)

    def _queue_of(self, request: Request) -> WaitQueue:
        queue = self.by_model.get(request.model)
        if queue is None:
            queue = self.by_model[request.model] = self._new_queue()
            self._drains[request.model] = DrainRate()
        return queue

    def _came(self, model: str | None, at: int) -> None:
        self._waiting += 1
        self._open[model] = self.by_model[model]
        self._drains[model].waits(at)

    def take(self, request: Request, at: int) -> None:
        """It goes to an instance."""
        self.by_model[request.model].take(request.id)
        self._left(request, at, counts=True)

    def remove(self, request: Request, at: int, *, counts: bool = True) -> None:
        """It waits no more, for nobody waits for it; `counts`: that says how quickly its queue
        drains."""
        self.by_model[request.model].remove(request.id)
        self._left(request, at, counts=counts)

    def _left(self, request: Request, at: int, *, counts: bool) -> None:
        self._waiting -= 1
        is_empty = not self.by_model[request.model]
        if is_empty:
            del self._open[request.model]
        self._drains[request.model].left(at, is_empty=is_empty, counts=counts)

    def rekey(self, requests: Iterable[Request]) -> None:
        """Something happened to the workflow of these, which wait, and may say more of them. They
        rest on the same state: where that of one is as it was, so is that of the others."""
        for request in requests:
            if not self.by_model[request.model].rekey(request):
                return

    def start_renewing(self) -> None:
        """What was learnt has changed: all keys are to be found anew, by and by."""
        for queue in self.by_model.values():
            queue.start_renewing()

    def renew_some(self) -> None:
        for queue in self.by_model.values():
            queue.renew_some()

    def forget_pace(self) -> None:
        """There is more to serve them, so they drain as never before."""
        for drain in self._drains.values():
            drain.forget()

    def wait_us(self, request: Request, at: int, *, worth_us: float) -> float:
        """For how long one that waits would go on waiting, by the order as it is and the pace of
        late; 0 where that is not known, or where even the last would wait less than `worth_us`."""
        queue, drain = self.by_model[request.model], self._drains[request.model]
        each_us = drain.each_us(at) if drain.is_known else None
        if each_us is None or each_us * len(queue) < worth_us:
            return 0.0
        return each_us * queue.ahead_of(request.id)

    def retry_after_s(self, at: int) -> int:
        """When a tenth of all that waits will have gone, at the pace of late."""
        paces = [self._drains[model].each_us(at) for model in self.open()]
        per_us = sum(1 / each_us for each_us in paces if each_us)
        if not per_us:
            return 1
        tenth_us = len(self) / 10 / per_us
        return min(max(1, math.ceil(tenth_us / SECOND)), _LONGEST_RETRY_S)
