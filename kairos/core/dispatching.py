"""Dispatch of waiting requests to instances, after kairos paper, 5 and 6, with changes of our own.

Among all queues with requests that can still be placed, the first request in policy order is booked
on an instance and dispatched, until nothing more fits. A request that does not fit does not block a
smaller one behind it that does not delay it (`core/scheduler/queue.py`); for an overdue one,
capacity is reserved.
"""

from collections import deque
from collections.abc import Set as AbstractSet
from operator import itemgetter

from kairos.core.admission import Admission
from kairos.core.dispatcher.available import AvailableInstances, could_take
from kairos.core.dispatcher.ledger import Ledger
from kairos.core.dispatcher.placement import Placement
from kairos.core.dispatcher.prefill_choice import can_answer, prefill_choice
from kairos.core.events import Command, Dispatch, Reason
from kairos.core.faults.faults import Faults
from kairos.core.model import Instance, Request
from kairos.core.scheduler.fair_queueing import SPARE, FairQueueing, Share
from kairos.core.scheduler.priority import LOWEST, priority_of
from kairos.core.scheduler.queue import WaitQueue
from kairos.core.scheduler.queues import Place, WaitQueues
from kairos.core.scheduler.work_estimates import WorkEstimates

_SHARES_TRIED = 9  # shares with nothing that fits after which a drain stops

_by_key = itemgetter(0)

Room = tuple[str | None, bool]  # key of free capacity: model, and whether for best-effort calls


def room_of(place: Place) -> Room:
    return place[1], place[0][0] == SPARE


class Drain:
    """State of one drain: order of turns, queues with nothing that fits, and free capacity."""

    def __init__(self, queues: dict[Place, WaitQueue]) -> None:
        self.open = queues  # queues to try; capacity only shrinks, so none is tried twice
        self.kept: set[str] = set()  # ids of instances reserved for overdue requests
        self.unfit: dict[Place, WaitQueue] = {}  # queues with nothing that fits
        self._unfit_of: dict[Room, int] = {}  # number of these
        self._turns: list[list[Place]] = []  # queues of each share, the next share last
        # Free capacity, until something is dispatched.
        self.rooms: dict[Room, AvailableInstances] = {}

    def next_queue(self, fairness: FairQueueing, at: int) -> tuple[Place, WaitQueue]:
        """Return the next queue: of the share whose turn it is, the one whose head comes first."""
        if len(self.open) == 1:
            [only] = self.open.items()
            return only
        places: list[Place] = []
        while not places:
            if not self._turns:
                self._turns = self._next_turns(fairness)
            places = [each for each in self._turns.pop() if each in self.open]
        self._turns.append(places)
        heads = [(self.open[each].head_key(at), each) for each in places]
        _, place = min(heads, key=_by_key)
        return place, self.open[place]

    def _next_turns(self, fairness: FairQueueing) -> list[list[Place]]:
        by_share: dict[Share, list[Place]] = {}
        for place in self.open:
            by_share.setdefault(place[0], []).append(place)
        order = fairness.order(by_share, _SHARES_TRIED)
        return [by_share[each] for each in reversed(order)]

    def leave_out(self, tenants: AbstractSet[str]) -> None:
        """Leave out the queues of these tenants, so that nothing overtakes their calls."""
        for place in [each for each in self.open if each[0][1] in tenants]:
            del self.open[place]

    def record_dispatched(self, place: Place) -> None:
        """Record that a request of this queue was dispatched."""
        self._turns.clear()
        self.rooms.clear()
        if not self.open[place]:
            del self.open[place]

    def set_unfit(self, place: Place) -> None:
        """Record that nothing in this queue fits.

        After enough such shares, or without a free instance, the model's other queues are skipped.
        """
        self.unfit[place] = self.open.pop(place)
        if not self.open:
            return
        model, is_spare = which = room_of(place)
        self._unfit_of[which] = unfit = self._unfit_of.get(which, 0) + 1
        room = self.rooms.get(which)
        is_over = room is None or not room.instances
        if is_over or unfit >= _SHARES_TRIED:  # best-effort calls have no more capacity than others
            for each in [e for e in self.open if e[1] == model and room_of(e)[1] >= is_spare]:
                del self.open[each]


class Dispatching:
    """Drains the queues: takes requests out of them, and books them."""

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
        """Dispatch what fits, and return the commands.

        `logged` are the dispatches of a replayed record; if given, these are carried out and
        nothing else. The order is computed in both cases, since that marks overdue calls.
        """
        self.drained_at = at
        commands: list[Command] = []
        if not self._queues and not logged:
            return commands
        alone = self._alone(at) if self._quarantine else None
        if logged is not None:
            alone = logged.popleft() if logged and logged[0].reason == "alone" else None
        if alone is not None:
            self._quarantine.start_trial(alone.request_id, alone.instance_id, at)
            self._dispatch(alone, at)
            commands.append(alone)
        found = Drain(self._queues.open())
        self._leave_out(found)
        if len(found.open) > 1:
            self._stop_if_full(found, at)
        while found.open:
            place, queue = found.next_queue(self._queues.fairness, at)
            dispatch = self._first(place, queue, found, at)
            if logged is not None:
                dispatch = logged.popleft() if logged and logged[0].request_id in queue else None
            if dispatch is not None:
                self._dispatch(dispatch, at)
                commands.append(dispatch)
                found.record_dispatched(place)
                self._leave_out(found)
            else:
                self._keep_for_overdue(place, queue, found)
                found.set_unfit(place)
        self._forget_reservation()
        for dispatch in logged or ():  # this balancer would have decided otherwise
            self._dispatch(dispatch, at)
        return commands

    def _leave_out(self, found: Drain) -> None:
        """Leave out tenants that may use no more KV memory."""
        if found.open and (tenants := self._admission.at_kv_share()):
            found.leave_out(tenants)

    def _stop_if_full(self, found: Drain, at: int) -> None:
        """Stop early if all queues are for one model without a free instance, the common case."""
        [model, *others] = {model for _, model in found.open}
        if not others:
            room = found.rooms[model, False] = self._room((model, False), found, at)
            if not room.instances:
                found.open.clear()

    def _keep_for_overdue(self, place: Place, queue: WaitQueue, found: Drain) -> None:
        if (overdue := queue.overdue()) is not None:
            serving = self._ledger.served.serving(place[1])
            found.kept.update(each.id for each in serving if could_take(each, overdue, self._tried))
            which = room_of(place)
            found.rooms = {which: found.rooms[which]}  # the others lack the reservation

    def _dispatch(self, dispatch: Dispatch, at: int) -> None:
        request = self._estimates.request(dispatch.request_id)
        assert request is not None
        cost_us = self._ledger.book(request, dispatch.instance_id, at)
        if dispatch.prefill_id is not None:
            self._ledger.prefills.begin_prefill(
                request, dispatch.prefill_id, dispatch.instance_id, at
            )
        self._queues.dispatch_call(request, at, cost_us, dispatch.reason)
        if self._queues.fairness.is_spare(request.service_class):
            is_spare = self._queues.fairness.is_spare
            self._ledger.spare.charge_best_effort(dispatch.instance_id, cost_us, is_spare, at)
        self._estimates.note_dispatch(dispatch.request_id, at)
        self._admission.on_dispatch(request)
        if self._quarantine:
            self._quarantine.remove_dispatched(dispatch.request_id)

    def _first(self, place: Place, queue: WaitQueue, found: Drain, at: int) -> Dispatch | None:
        """Return the dispatch of the queue's next request, or None.

        A reservation stays in force for the shares that follow.
        """
        share, which = place[0], room_of(place)
        if share == self._reserved_for:
            self._forget_reservation()
        room = found.rooms.get(which)
        if room is None:
            room = found.rooms[which] = self._room(which, found, at)
        if not room.instances:
            queue.note_time(at)
            return None
        room.may_reserve, room.has_reserved = self._reserved_for is None, False
        turn = queue.first(room, at)
        if room.has_reserved:
            self._reserved_for = share
        if turn is None:
            return None
        instance = room.choose(turn.request)
        assert instance is not None, "it fitted"
        before = self._passed_over(share, found) if found.unfit else 0
        return self._to(turn.request, instance, turn.reason, len(queue) - 1, share, before)

    def _room(self, which: Room, found: Drain, at: int) -> AvailableInstances:
        model, is_spare = which
        serving = self._ledger.served.serving(model)
        if is_spare and serving:
            free = self._ledger.spare.free_share(serving, self._queues.fairness.is_spare)
            serving = [each for each in serving if self._takes_spare(each, free, at)]
        if found.kept:
            serving = [i for i in serving if i.id not in found.kept]
        if (spared := self._quarantine.room) is not None and self._quarantine:
            serving = [i for i in serving if i.id != spared]
        if self._circuits:
            running = self._ledger.running
            serving = [i for i in serving if self._circuits.admits_call(i.id, running(i.id), at)]
        if self._ledger.served.has_pairs:
            prefilling = self._prefilling(model, at)
            serving = [i for i in serving if can_answer(i, prefilling, self._ledger, at)]
        return AvailableInstances(serving, self._ledger, self._placement, at, self._tried)

    def _prefilling(self, model: str | None, at: int) -> list[Instance]:
        """Return the instances that compute prompts for others, and may get one more."""
        found = self._ledger.served.prefilling(model)
        if not self._circuits:
            return found
        under_way = self._ledger.prompts.requests
        return [i for i in found if self._circuits.admits_call(i.id, len(under_way(i.id)), at)]

    def _takes_spare(self, instance: Instance, free_share: float, at: int) -> bool:
        """Return whether the instance takes one more best-effort call (`spare_calls.py`)."""
        ledger, is_spare = self._ledger, self._queues.fairness.is_spare
        used = ledger.running(instance.id) / instance.max_num_seqs
        if instance.kv_tokens:
            used = max(used, ledger.held_tokens(instance.id, at) / instance.kv_tokens)
        return ledger.spare.may_dispatch(instance.id, is_spare, used, free_share, at)

    def _passed_over(self, share: Share, found: Drain) -> int:
        """Return the number of tenants before this share for which nothing fitted."""
        passed = [other for other, _ in found.unfit if other != share]
        return len({other[1] for other in passed} - {share[1]})

    def _forget_reservation(self) -> None:
        if self._reserved_for is not None:
            self._placement.forget_reservation()
            self._reserved_for = None

    def _alone(self, at: int) -> Dispatch | None:
        """Return the dispatch of a call that has to run alone, once an instance is empty for it."""
        quarantine, running = self._quarantine, self._ledger.running
        for request_id in quarantine.next_to_run(at):
            request = self._estimates.request(request_id)
            assert request is not None
            serving = self._ledger.served.serving(request.model)
            able = [
                i
                for i in serving
                if could_take(i, request, self._tried) and self._circuits.admits_call(i.id, 0, at)
            ]
            if able and len(serving) > 1:
                # The one reserved already, or else the first to be empty.
                best = min(able, key=lambda i: (i.id != quarantine.room, running(i.id), i.id))
                quarantine.reserve_instance(best.id)
                room = AvailableInstances([best], self._ledger, self._placement, at, self._tried)
                has_others = running(best.id) and not quarantine.is_empty
                if has_others or not room.instances or not room.fits(request):
                    return None
                waiting = len(self._queues.of(request)) - 1
                share = self._queues.fairness.share_of(request)
                return self._to(request, best, "alone", waiting, share)
        if quarantine.alone is None:
            quarantine.reserve_instance(None)
        return None

    def _priority(self, remaining_us: int, reason: Reason, share: Share) -> int:
        """Return the priority in the engine: always lowest for best-effort calls."""
        return LOWEST if share[0] == SPARE else priority_of(remaining_us, reason)

    def _to(
        self,
        request: Request,
        instance: Instance,
        reason: Reason,
        waiting: int,
        share: Share,
        before: int = 0,
    ) -> Dispatch:
        remaining_us = int(self._estimates.remaining_us(request))
        prefill_id = None
        # A call that runs alone uses no second instance, which it might kill.
        if instance.phase == "decode" and reason != "alone":
            prefilling = self._prefilling(request.model, self.drained_at)
            prefill_id = prefill_choice(
                request, instance, prefilling, self._ledger, self.drained_at
            )
        return Dispatch(
            request.id,
            instance.id,
            reason,
            waiting,
            remaining_us,
            self._estimates.rank(request),
            self._ledger.prefixes.cached_tokens(request, instance.id),
            self._priority(remaining_us, reason, share) if instance.priority else None,
            self._queues.fairness.tenants[share[0]].waiting - 1,
            before,
            self._admission.limits(request, self.drained_at),
            prefill_id,
        )
