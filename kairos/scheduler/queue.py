"""The wait queue: requests of one model, in the order of the policy, and nobody starved by it.

Starvation is bounded, whatever the policy. When a request arrives, the predicted work that waits
before it, its own included, is written down. Once what was dispatched since then comes to
`OVERTAKEN` times as much, the request is overdue; so it is after half of the longest wait that is
configured, or when the policy's own patience ends. Overdue requests go first, in order of arrival,
and room is kept for one that does not fit. So the work that overtakes a request while the pool has
room for it is at most `OVERTAKEN` times the work that it found before it. Ours.

What memory is kept for, where its context is cached, goes before the others: nobody else could use
that memory (`dispatcher/kv_retention.py`).

Head of line: where the first by policy does not fit, those behind it may go that fit, of which no
more than `BACKFILL` are passed over, too. Once that has lasted `PASSED_OVER` times as long as its
own call is expected to take, it gets a reservation, and only those go that fit beside that (EASY
backfilling: Lifka, 1995, where it has one at once).
"""

from collections import OrderedDict
from collections.abc import Collection, Iterator
from itertools import filterfalse, islice, takewhile

from kairos.model import SECOND, Request
from kairos.scheduler.drain import DrainRate
from kairos.scheduler.front import FirstFew, Front
from kairos.scheduler.heap import LazyHeap
from kairos.scheduler.policies import Key, Policy
from kairos.scheduler.turn import InstanceRoom, Turn
from kairos.scheduler.waiting import KeyEntry, NumberEntry, WaitingRequest
from kairos.scheduler.work_estimates import WorkEstimates

OVERTAKEN = 9
PASSED_OVER = 4.0  # times its own predicted work
BACKFILL = 8
MAX_WAIT_US = 600 * SECOND
_BOUNCED = 1 << 62  # µs; taken off an arrival it comes before the number of any
_LOOKED_AT = 64  # entries, to tell how many go before a request


class WaitQueue:
    """Heaps by policy key, and by when a request becomes overdue; equal keys leave in
    order of arrival. Everything is O(log n) amortised and never O(n) at once, but passing over k
    requests that do not fit, which adds O(k log n) to a pop.
    """

    def __init__(
        self,
        policy: Policy,
        estimates: WorkEstimates,
        arrivals: Iterator[int],
        max_wait_us: int = MAX_WAIT_US,
        overtaken: float = OVERTAKEN,
        backfill: int = BACKFILL,
        passed_over: float = PASSED_OVER,
    ) -> None:
        """`arrivals` numbers the requests; queues that share it agree on who came first.
        `overtaken` infinite: the policy alone decides. `backfill` 0: nobody goes before the first;
        `passed_over` 0: only what does not delay it.
        """
        self._policy, self._estimates, self._arrivals = policy, estimates, arrivals
        self.max_wait_us, self.drain = max_wait_us, DrainRate()
        self._overtaken, self._backfill, self._passed_over = overtaken, backfill, passed_over
        self._waiting: OrderedDict[str, WaitingRequest] = OrderedDict()  # in order of arrival
        self.waiting_us = 0  # predicted work of all that wait
        self._dispatched_us = 0  # predicted work of all that ever left for an instance
        self.by_key: LazyHeap[KeyEntry] = LazyHeap(self._renew_key)
        self._front = Front(self.by_key, self._renew_key, backfill + 1)
        self._few = FirstFew()
        self._by_due_work: LazyHeap[NumberEntry] = LazyHeap(self._if_not_overdue)
        self._by_due_at: LazyHeap[NumberEntry] = LazyHeap(self._if_not_overdue)
        self._overdue: LazyHeap[NumberEntry] = LazyHeap(self._if_here)  # by number of arrival
        self._bounced: dict[str, WaitingRequest] = {}  # by an instance

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._waiting

    def requests(self) -> list[Request]:
        """All waiting requests, in order of arrival; of those that were bounced, of return."""
        return [waiting.request for waiting in self._waiting.values()]

    def standings(self) -> Collection[WaitingRequest]:
        """How all stand that wait, in the order of `requests`. Not for the caller to change."""
        return self._waiting.values()

    def oldest(self) -> Request:
        """The request that came first. Queue not empty."""
        first = next(iter(self._waiting.values()))
        return min((first, *self._bounced.values()), key=lambda w: w.request.arrived_at).request

    def arrived_by(self, at: int) -> list[Request]:
        """Those that came so early."""
        early = [each.request for each in self._bounced.values() if each.request.arrived_at <= at]
        fresh = filterfalse(self._bounced.__contains__, self._waiting)
        waiting = map(self._waiting.__getitem__, fresh)
        in_time = takewhile(lambda each: each.request.arrived_at <= at, waiting)
        return early + [each.request for each in in_time]

    def push(self, request: Request, at: int) -> None:
        """Add a request that the knowledge has been told of."""
        assert request.id not in self._waiting
        seq, work_us = next(self._arrivals), self._estimates.call_us(request)
        state = self._policy.state(request)
        key = self._policy.key(request, state)
        waiting = WaitingRequest(request, seq, key, self._estimates.epoch, state, work_us)
        self._waiting[request.id] = waiting
        self.waiting_us += work_us
        n = len(self._waiting)
        patience_us, longest_us = self._policy.patience_us(request), self.max_wait_us // 2
        due_at = at + (longest_us if patience_us is None else min(patience_us, longest_us))
        due_us = self._dispatched_us + self._overtaken * self.waiting_us
        self.by_key.push((key, seq, request.id), n)
        self._by_due_work.push((due_us, seq, request.id), n)
        self._by_due_at.push((due_at, seq, request.id), n)

    def push_back(self, request: Request, *, aside: bool = False) -> None:
        """Add a request that was taken, and was bounced: it goes before all that were not, and of
        those that were, by arrival. `aside`: it has no turn until it is brought back."""
        assert request.id not in self._waiting
        seq = request.arrived_at - _BOUNCED
        state = self._policy.state(request)
        key = self._policy.key(request, state)
        work_us, n = self._estimates.call_us(request), len(self._waiting) + 1
        waiting = WaitingRequest(request, seq, key, self._estimates.epoch, state, work_us)
        waiting.overdue, waiting.aside = not aside, aside
        self._waiting[request.id] = self._bounced[request.id] = waiting
        self.waiting_us += work_us
        if not aside:
            self.by_key.push((key, seq, request.id), n)
            self._overdue.push((seq, seq, request.id), n)

    def remove(self, request_id: str) -> Request:
        waiting = self._waiting.pop(request_id)
        self._bounced.pop(request_id, None)
        self.waiting_us -= waiting.work_us
        if not self._waiting:  # at once, so that the next that comes need not find all of it dead
            for entries in (self._front, self._by_due_work, self._by_due_at, self._overdue):
                entries.clear()
        return waiting.request

    def overdue(self) -> Request | None:
        """The first of the requests that are overdue."""
        entry = self._overdue.top()
        return self._waiting[entry[2]].request if entry is not None else None

    def head_key(self, at: int) -> tuple[Key, int]:
        """Where the first request stands against those of other queues. Queue not empty."""
        self.note_time(at)
        overdue = self._overdue.top()
        if overdue is not None:
            return (float("-inf"),), overdue[1]
        first = self._front.entries(1)
        return first[0][:2] if first else ((float("inf"),), 0)  # all are aside

    def rekey(self, request: Request) -> bool:
        """A fact about its workflow may have changed its key. Returns whether it did."""
        waiting = self._waiting[request.id]
        state = self._policy.state(request)
        if state == waiting.state:
            return False
        waiting.state = state
        key = self._policy.key(request, state)
        waiting.epoch = self._estimates.epoch
        if key != waiting.key and not waiting.aside:
            waiting.key = key  # the entry that stands for the old one is dead now
            self.by_key.push((key, waiting.seq, request.id), len(self._waiting))
        return True

    def ahead_of(self, request_id: str) -> float:
        """About how many would go before a request that waits, by the order as it is now."""
        me = self._waiting[request_id]
        self._front.put_back()
        seen = ahead = 0
        for key, seq, other_id in self.by_key.some(_LOOKED_AT):
            other = self._waiting.get(other_id)
            if other is not None and other is not me and other.key is key:
                seen += 1
                ahead += other.overdue or (key, seq) < (me.key, me.seq)
        return max(0.0, ahead / max(1, seen) * (len(self) - 1) - self._backfill - 1)

    def start_renewing(self) -> None:
        """What was learnt has changed: all keys are found anew, by and by, as `by_key` is moved; a
        request at its top always is up to date."""
        self._front.put_back()
        self.by_key.start_moving()

    def first(self, room: InstanceRoom, at: int) -> Turn | None:
        """Whose turn it is; None: nothing fits that may go. Who is overdue by that, stays so."""
        self.note_time(at)
        passed_over = 0
        while True:
            turn, passed_over = self._turn(room, passed_over, at)
            if turn is None or not self._overtakes_too_much(turn.request.id):
                return turn

    def take(self, request_id: str) -> Request:
        """Take out a request that goes to an instance now."""
        self._dispatched_us += self._waiting[request_id].work_us
        return self.remove(request_id)

    def overtaken_by(self, work_us: int) -> None:
        """So much went while it was the turn of this queue, of which nothing fits."""
        self._dispatched_us += work_us
        self._note_overtaken(self._dispatched_us)

    def _turn(self, room: InstanceRoom, passed_over: int, at: int) -> tuple[Turn | None, int]:
        """The first overdue request if it fits; else one that memory is kept for; else the first by
        policy for which there is room beside what is kept for the overdue one. And how many were
        passed over by now."""
        overdue = self.overdue()
        if overdue is not None:
            if room.fits(overdue):
                return Turn(overdue, "overdue"), passed_over
            if not room.keep_for(overdue):
                return None, passed_over
        if (turn := self._expected_back(room)) is not None:
            return turn, passed_over
        return self._by_policy(room, passed_over, at)

    def _expected_back(self, room: InstanceRoom) -> Turn | None:
        here = filter(None, map(self._waiting.get, room.expected_back()))
        for waiting in islice(here, self._backfill + 1):
            if not waiting.aside and room.fits(waiting.request):
                return Turn(waiting.request, "kept")
        return None

    def _by_policy(self, room: InstanceRoom, passed_over: int, at: int) -> tuple[Turn | None, int]:
        """`passed_over`: those that were, in this turn."""
        waiting = self._waiting
        if not passed_over:
            for head in self._front.entries(1):
                first = waiting[head[2]]
                if room.fits(first.request):
                    return Turn(first.request, "first"), 0
                if self._has_been_passed_over(first, at):
                    room.reserve(first.request)
                passed_over = 1
        requests = self._few.of(self._front.entries(self._backfill + 1), waiting)
        while passed_over < len(requests):
            passed_over += room.refused(self._few.behind(passed_over))
            if passed_over < len(requests):
                if room.fits(requests[passed_over]):
                    return Turn(requests[passed_over], "backfill"), passed_over
                passed_over += 1
        return None, passed_over

    def _has_been_passed_over(self, waiting: WaitingRequest, at: int) -> bool:
        """As long as is allowed. It is the first, and does not fit."""
        since = waiting.passed_over_at
        waiting.passed_over_at = since = at if since is None else since
        return at - since >= self._passed_over * waiting.work_us

    def note_time(self, at: int) -> None:
        """Who has waited for so long is overdue."""
        while (entry := self._by_due_at.top()) is not None and entry[0] <= at:
            self._make_overdue(entry)

    def _overtakes_too_much(self, request_id: str) -> bool:
        """Whether dispatching this one would go beyond what another may be overtaken by."""
        return self._note_overtaken(self._dispatched_us + self._waiting[request_id].work_us)

    def _note_overtaken(self, after_us: float) -> bool:
        """Whether some are overdue once so much was dispatched."""
        found = False
        while (entry := self._by_due_work.top()) is not None and entry[0] < after_us:
            found = True
            self._make_overdue(entry)
        return found

    def _make_overdue(self, entry: NumberEntry) -> None:
        _, seq, request_id = entry
        self._waiting[request_id].overdue = True
        self._overdue.push((seq, seq, request_id), len(self._waiting))

    def _renew_key(self, entry: KeyEntry) -> KeyEntry | None:
        key, seq, request_id = entry
        waiting = self._waiting.get(request_id)
        if waiting is None or waiting.seq != seq or waiting.key is not key:
            return None
        if waiting.epoch == self._estimates.epoch:
            return entry
        waiting.epoch = self._estimates.epoch
        waiting.state = self._policy.state(waiting.request)
        renewed = self._policy.key(waiting.request, waiting.state)
        if renewed == key:
            return entry
        waiting.key = renewed
        return renewed, seq, request_id

    def _if_here(self, entry: NumberEntry) -> NumberEntry | None:
        waiting = self._waiting.get(entry[2])  # it may have left and come back
        here = waiting is not None and waiting.seq == entry[1] and not waiting.aside
        return entry if here else None

    def _if_not_overdue(self, entry: NumberEntry) -> NumberEntry | None:
        waiting = self._waiting.get(entry[2])
        is_meant = waiting is not None and waiting.seq == entry[1] and not waiting.overdue
        return entry if is_meant else None
