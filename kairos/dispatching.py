"""Which waiting requests go now, and where: ours, after kairos paper, 5 and 6.

The first request by policy among all queues whose requests can still be placed is booked on an
instance and dispatched, until nothing more fits. A request that does not fit does not hold back a
smaller one behind it that does not delay it (`scheduler/queue.py`); for one that is overdue, room
is kept.
"""

from collections import deque
from operator import itemgetter

from kairos.admission import Admission
from kairos.dispatcher.available import AvailableInstances, could_take
from kairos.dispatcher.ledger import Ledger
from kairos.dispatcher.placement import Placement
from kairos.events import (
    Command,
    Dispatch,
)
from kairos.faults.circuits import Circuits
from kairos.scheduler.priority import priority_of
from kairos.scheduler.queue import WaitQueue
from kairos.scheduler.queues import WaitQueues
from kairos.scheduler.work_estimates import WorkEstimates

_by_key = itemgetter(0)


def _next_queue(queues: dict[str | None, WaitQueue], at: int) -> tuple[str | None, WaitQueue]:
    """The one whose head goes before those of the others."""
    if len(queues) == 1:
        [(model, queue)] = queues.items()
        queue.note_time(at)
        return model, queue
    heads = [(queue.head_key(at), model) for model, queue in queues.items()]
    _, model = min(heads, key=_by_key)
    return model, queues[model]


class Dispatching:
    """Drains the queues. It takes requests out of them, and books them."""

    def __init__(
        self,
        estimates: WorkEstimates,
        ledger: Ledger,
        placement: Placement,
        queues: WaitQueues,
        admission: Admission,
        circuits: Circuits,
    ) -> None:
        self._estimates = estimates
        self._ledger = ledger
        self._placement = placement
        self._queues = queues
        self._admission = admission
        self._tried = admission.tried
        self._circuits = circuits
        self.drained_at = 0

    def drain(self, at: int, logged: deque[Dispatch] | None = None) -> list[Command]:
        """Dispatch what fits; or what is `logged`, of requests that wait, and nothing else. Either
        way it is worked out whose turn it is, which says who is overdue."""
        self.drained_at = at
        commands: list[Command] = []
        if not self._queues and not logged:
            return commands
        kept: set[str] = set()  # ids of instances left alone for requests that are overdue
        open_queues = self._queues.open()
        while open_queues:
            model, queue = _next_queue(open_queues, at)
            dispatch = self._first(model, queue, kept, at)
            if logged is not None:
                dispatch = logged.popleft() if logged and logged[0].request_id in queue else None
            if dispatch is not None:
                self._dispatch(dispatch, at)
                commands.append(dispatch)
            elif (overdue := queue.overdue()) is not None:
                serving = self._ledger.served.serving(model)
                kept.update(each.id for each in serving if could_take(each, overdue, self._tried))
            if dispatch is None or not queue:
                del open_queues[model]  # room only shrinks while draining: it need not be retried
        for dispatch in logged or ():  # not what this balancer would have decided
            self._dispatch(dispatch, at)
        return commands

    def _dispatch(self, dispatch: Dispatch, at: int) -> None:
        request = self._estimates.request(dispatch.request_id)
        assert request is not None
        self._queues.take(request, at)
        self._ledger.book(request, dispatch.instance_id, at)
        self._estimates.dispatched(dispatch.request_id, at)
        self._admission.dispatched(request)

    def _first(
        self, model: str | None, queue: WaitQueue, kept: set[str], at: int
    ) -> Dispatch | None:
        """Whose turn it is in the queue, and where it would go."""
        serving = self._ledger.served.serving(model)
        if kept:
            serving = [i for i in serving if i.id not in kept]
        if self._circuits:
            running = self._ledger.running
            serving = [i for i in serving if self._circuits.takes(i.id, running(i.id), at)]
        room = AvailableInstances(serving, self._ledger, self._placement, at, self._tried)
        if not room.instances:
            return None
        turn = queue.first(room, at)
        self._placement.forget_reservation()
        if turn is None:
            return None
        request, instance = turn.request, room.choose(turn.request)
        assert instance is not None, "it fitted"
        remaining_us = int(self._estimates.remaining_us(request))
        return Dispatch(
            request.id,
            instance.id,
            turn.reason,
            len(queue) - 1,
            remaining_us,
            self._estimates.rank(request),
            self._ledger.prefixes.cached_tokens(request, instance.id),
            priority_of(remaining_us, turn.reason) if instance.priority else None,
        )
