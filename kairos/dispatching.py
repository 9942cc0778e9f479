"""Which waiting requests go now, and where: ours, after kairos paper, 5 and 6.

The first request by policy among all queues whose requests can still be placed is booked on an
instance and dispatched, until nothing more fits. A request that does not fit does not hold back a
smaller one behind it that does not delay it (`scheduler/queue.py`); for one that is overdue, room
is kept.
"""

from collections import deque
from operator import itemgetter

import msgspec

from kairos.admission import Admission
from kairos.dispatcher.available import AvailableInstances, could_take
from kairos.dispatcher.ledger import Ledger
from kairos.dispatcher.placement import Placement
from kairos.events import (
    Command,
    Dispatch,
    Reason,
)
from kairos.faults.faults import Faults
from kairos.model import Instance, Request
from kairos.scheduler.fair_queueing import FairQueueing, Share
from kairos.scheduler.priority import priority_of
from kairos.scheduler.queue import WaitQueue
from kairos.scheduler.queues import Place, WaitQueues
from kairos.scheduler.work_estimates import WorkEstimates

_by_key = itemgetter(0)


def _next_queue(
    queues: dict[Place, WaitQueue], fairness: FairQueueing, at: int
) -> tuple[Place, WaitQueue]:
    """Of the share whose turn it is, the one whose head goes before those of the others."""
    if len(queues) == 1:
        [(place, queue)] = queues.items()
        queue.note_time(at)
        return place, queue
    share = fairness.first(share for share, _ in queues)
    heads = [(queue.head_key(at), each) for each, queue in queues.items() if each[0] == share]
    _, place = min(heads, key=_by_key)
    return place, queues[place]


class _Drain(msgspec.Struct):
    """What has been found while the queues are drained."""

    kept: set[str] = set()  # ids of instances left alone for requests that are overdue
    unfit: dict[Place, WaitQueue] = {}  # those of which nothing fits


class Dispatching:
    """Drains the queues. It takes requests out of them, and books them."""

    def __init__(
        self,
        estimates: WorkEstimates,
        ledger: Ledger,
        queues: WaitQueues,
        faults: Faults,
        placement: Placement,
        admission: Admission,
    ) -> None:
        self._estimates = estimates
        self._ledger = ledger
        self._placement = placement
        self._queues = queues
        self._admission = admission
        self._tried = admission.tried
        self._circuits, self._quarantine = faults.circuits, faults.quarantine
        self.drained_at = 0
        self._reserved_for: Share | None = None

    def drain(self, at: int, logged: deque[Dispatch] | None = None) -> list[Command]:
        """Dispatch what fits; or what is `logged`, of requests that wait, and nothing else. Either
        way it is worked out whose turn it is, which says who is overdue."""
        self.drained_at = at
        commands: list[Command] = []
        if not self._queues and not logged:
            return commands
        alone = self._alone(at) if self._quarantine else None
        if logged is not None:
            alone = logged.popleft() if logged and logged[0].reason == "alone" else None
        if alone is not None:
            self._quarantine.begins(alone.request_id, alone.instance_id, at)
            self._dispatch(alone, at)
            commands.append(alone)
        found = _Drain()
        open_queues = self._queues.open()
        while open_queues:
            place, queue = _next_queue(open_queues, self._queues.fairness, at)
            dispatch = self._first(place, queue, found, at)
            if logged is not None:
                dispatch = logged.popleft() if logged and logged[0].request_id in queue else None
            if dispatch is not None:
                self._dispatch(dispatch, at)
                commands.append(dispatch)
            else:
                self._note_unfit(place, queue, found)
            if dispatch is None or not queue:
                del open_queues[place]  # room only shrinks while draining: it need not be retried
        self._forget_reservation()
        for dispatch in logged or ():  # not what this balancer would have decided
            self._dispatch(dispatch, at)
        return commands

    def _note_unfit(self, place: Place, queue: WaitQueue, found: _Drain) -> None:
        _, model = place
        found.unfit[place] = queue
        if (overdue := queue.overdue()) is not None:
            serving = self._ledger.served.serving(model)
            found.kept.update(each.id for each in serving if could_take(each, overdue, self._tried))

    def _dispatch(self, dispatch: Dispatch, at: int) -> None:
        request = self._estimates.request(dispatch.request_id)
        assert request is not None
        cost_us = self._ledger.book(request, dispatch.instance_id, at)
        self._queues.take(request, at, cost_us)
        self._estimates.dispatched(dispatch.request_id, at)
        self._admission.dispatched(request)

    def _first(self, place: Place, queue: WaitQueue, found: _Drain, at: int) -> Dispatch | None:
        """Whose turn it is in the queue, and where it would go. What is reserved stays so for the
        shares that come after."""
        share, model = place
        if share == self._reserved_for:
            self._forget_reservation()
        serving = self._ledger.served.serving(model)
        if found.kept:
            serving = [i for i in serving if i.id not in found.kept]
        if self._quarantine:
            serving = [i for i in serving if i.id != self._quarantine.room]
        if self._circuits:
            running = self._ledger.running
            serving = [i for i in serving if self._circuits.takes(i.id, running(i.id), at)]
        room = AvailableInstances(serving, self._ledger, self._placement, at, self._tried)
        if not room.instances:
            return None
        room.may_reserve = self._reserved_for is None
        turn = queue.first(room, at)
        if room.has_reserved:
            self._reserved_for = share
        if turn is None:
            return None
        instance = room.choose(turn.request)
        assert instance is not None, "it fitted"
        before = self._pass_over(turn.request, share, found) if found.unfit else 0
        return self._to(turn.request, instance, turn.reason, len(queue) - 1, before)

    def _pass_over(self, request: Request, share: Share, found: _Drain) -> int:
        """It goes before calls of other shares, whose turn it was. How many tenants these are."""
        passed = {place: each for place, each in found.unfit.items() if place[0] != share}
        for (_, model), queue in passed.items():
            if model == request.model:
                queue.overtaken_by(self._estimates.call_us(request))
        return len({other[1] for other, _ in passed} - {share[1]})

    def _forget_reservation(self) -> None:
        if self._reserved_for is not None:
            self._placement.forget_reservation()
            self._reserved_for = None

    def _alone(self, at: int) -> Dispatch | None:
        """A call that is to run alone, once nothing runs any more on an instance that can be spared
        for it."""
        quarantine, running = self._quarantine, self._ledger.running
        for request_id in quarantine.next_to_run(at):
            request = self._estimates.request(request_id)
            assert request is not None
            serving = self._ledger.served.serving(request.model)
            able = [
                i
                for i in serving
                if could_take(i, request, self._tried) and self._circuits.takes(i.id, 0, at)
            ]
            if able and len(serving) > 1:
                # The one that is left alone already, or else the first to be empty.
                best = min(able, key=lambda i: (i.id != quarantine.room, running(i.id), i.id))
                quarantine.leave_alone(best.id)
                room = AvailableInstances([best], self._ledger, self._placement, at, self._tried)
                has_others = running(best.id) and not quarantine.is_empty
                if has_others or not room.instances or not room.fits(request):
                    return None
                waiting = len(self._queues.of(request)) - 1
                return self._to(request, best, "alone", waiting)
        if quarantine.alone is None:
            quarantine.leave_alone(None)
        return None

    def _to(
        self, request: Request, instance: Instance, reason: Reason, waiting: int, before: int = 0
    ) -> Dispatch:
        remaining_us = int(self._estimates.remaining_us(request))
        return Dispatch(
            request.id,
            instance.id,
            reason,
            waiting,
            remaining_us,
            self._estimates.rank(request),
            self._ledger.prefixes.cached_tokens(request, instance.id),
            priority_of(remaining_us, reason) if instance.priority else None,
            self._queues.fairness.tenants_beside(request),
            before,
        )
