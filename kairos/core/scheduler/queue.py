"""Wait queue: requests of one model in policy order, without starvation.

The guard (`core/scheduler/guard.py`) bounds starvation under any policy: it decides which requests
are overdue, and when one of them precedes all others. If an overdue request does not fit, capacity
is reserved for it.

A request whose cached context is retained (`core/dispatcher/kv_retention.py`) comes next, since no
other request could use that memory.

Head-of-line blocking: if the first request in policy order does not fit, fitting requests behind it
may be dispatched, passing over at most `BACKFILL` of them. When that has lasted `PASSED_OVER` times
the expected duration of its own call, the first gets a reservation, and only requests that do not
delay it are dispatched (EASY backfilling: Lifka, 1995, which reserves at once).

Requests that wait at the head of the queue of a full pool are checked after each fact, so reading
them must be cheap: they are stored outside of the heap while they stay first (`Front`).
"""

from bisect import insort
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import filterfalse, islice, takewhile
from typing import Final, Generic, Protocol

from kairos.core.events import Reason
from kairos.core.model import SECOND, Request
from kairos.core.scheduler.drain import DrainRate
from kairos.core.scheduler.guard import MakeGuard, PatienceGuard
from kairos.core.scheduler.heap import Entry, LazyHeap
from kairos.core.scheduler.policies import Key, Policy
from kairos.core.scheduler.waiting import KeyEntry, WaitingRequest
from kairos.core.scheduler.work_estimates import WorkEstimates


class InstanceRoom(Protocol):
    """Free capacity of the instances that could serve the queue."""

    def fits(self, request: Request) -> bool:
        """Return whether the request can be placed now."""

    def refused(self, requests: Sequence[Request]) -> int:
        """Return how many of these, counted from the first, are known not to fit.

        One query is quicker than one per request. The requests after those may not fit either.
        """

    def expected_back(self) -> Iterator[str]:
        """Yield ids of requests that memory is retained for, first in order first."""

    def reserve(self, request: Request) -> None:
        """Reserve for a request that does not fit now: later placements must not delay it."""

    def exclude_for(self, request: Request) -> bool:
        """Exclude the instances that could serve the request once they are free.

        Returns whether any other instance is left.
        """


class Turn:
    """The request to dispatch next, and the reason."""

    def __init__(self, request: Request, reason: Reason) -> None:
        self.request: Final = request
        self.reason: Final = reason


PASSED_OVER = 4.0  # times its own predicted work
BACKFILL = 8
MAX_WAIT_US = 600 * SECOND
_BOUNCED = 1 << 62  # µs; an arrival time minus this sorts before the number of any other request
_LOOKED_AT = 64  # entries sampled to estimate how many precede a request


class WaitQueue:
    """Heap by policy key, plus the guard's; equal keys leave in order of arrival.

    Every operation is O(log n) amortised and never O(n) at once, except that passing over k
    requests that do not fit adds O(k log n) to a pop.
    """

    def __init__(
        self,
        policy: Policy,
        estimates: WorkEstimates,
        arrivals: Iterator[int],
        max_wait_us: int = MAX_WAIT_US,
        guard: MakeGuard = PatienceGuard,
        backfill: int = BACKFILL,
        passed_over: float = PASSED_OVER,
    ) -> None:
        """Create an empty queue.

        `arrivals` numbers the requests: queues that share it agree on the order of arrival. The
        maximum wait is enforced by admission. `backfill`: how many are passed over behind the
        first at most; 0: nothing overtakes it. `passed_over`: see `PASSED_OVER`; 0: only requests
        that do not delay the first overtake it.
        """
        self._policy, self._estimates, self._arrivals = policy, estimates, arrivals
        self.max_wait_us, self.drain = max_wait_us, DrainRate()
        self._backfill, self._passed_over = backfill, passed_over
        self._waiting: OrderedDict[str, WaitingRequest] = OrderedDict()  # in order of arrival
        self.waiting_us = 0  # predicted work of all waiting calls
        self.by_key: LazyHeap[KeyEntry] = LazyHeap(self._renew_key)
        self._front = Front(self.by_key, self._renew_key, backfill + 1)
        self._few = FirstFew()
        self.guard = guard(estimates, self._waiting)
        self._bounced: dict[str, WaitingRequest] = {}  # requests that an instance returned

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._waiting

    def requests(self) -> list[Request]:
        """Return all waiting requests in order of arrival, or, if bounced, of their return."""
        return [waiting.request for waiting in self._waiting.values()]

    def standings(self) -> Collection[WaitingRequest]:
        """Return the state of all waiting requests, in the order of `requests`. Read-only."""
        return self._waiting.values()

    def oldest(self) -> Request:
        """Return the request that arrived first. The queue must not be empty."""
        first = next(iter(self._waiting.values()))
        return min((first, *self._bounced.values()), key=lambda w: w.request.arrived_at).request

    def arrived_by(self, at: int) -> list[Request]:
        """Return the requests that arrived at or before `at`."""
        early = [each.request for each in self._bounced.values() if each.request.arrived_at <= at]
        fresh = filterfalse(self._bounced.__contains__, self._waiting)
        waiting = map(self._waiting.__getitem__, fresh)
        in_time = takewhile(lambda each: each.request.arrived_at <= at, waiting)
        return early + [each.request for each in in_time]

    def push(self, request: Request, at: int) -> None:
        """Add a request that `estimates` already knows."""
        assert request.id not in self._waiting
        seq, work_us = next(self._arrivals), self._estimates.call_us(request)
        state = self._policy.state(request)
        key = self._policy.key(request, state)
        waiting = WaitingRequest(request, seq, key, self._estimates.epoch, state, work_us)
        self._waiting[request.id] = waiting
        self.waiting_us += work_us
        n = len(self._waiting)
        self.by_key.push((key, seq, request.id), n)
        self.guard.watch_call(waiting, at, self._policy.patience_us(request))

    def push_back(self, request: Request, *, aside: bool = False) -> None:
        """Add a bounced request again: before all others, and among bounced ones by arrival.

        With `aside`, quarantine it: it is not dispatched until it is brought back.
        """
        assert request.id not in self._waiting
        seq = request.arrived_at - _BOUNCED
        state = self._policy.state(request)
        key = self._policy.key(request, state)
        work_us, n = self._estimates.call_us(request), len(self._waiting) + 1
        waiting = WaitingRequest(request, seq, key, self._estimates.epoch, state, work_us)
        waiting.aside = aside
        self._waiting[request.id] = self._bounced[request.id] = waiting
        self.waiting_us += work_us
        if not aside:
            self.by_key.push((key, seq, request.id), n)
            self.guard.watch_returned(waiting)

    def remove(self, request_id: str) -> Request:
        waiting = self._waiting.pop(request_id)
        self._bounced.pop(request_id, None)
        self.waiting_us -= waiting.work_us
        if not self._waiting:  # clear at once, so the next arrival need not drop the dead entries
            self._front.clear()
            self.guard.clear()
        return waiting.request

    def overdue(self) -> Request | None:
        """Return the overdue call to dispatch before all others now, if any."""
        return self.guard.first()

    def head_key(self, at: int) -> tuple[Key, int]:
        """Return the sort key of the first request among queues. The queue must not be empty."""
        self.note_time(at)
        if (overdue := self.guard.first()) is not None:
            return (float("-inf"),), self._waiting[overdue.id].seq
        first = self._front.entries(1)
        return first[0][:2] if first else ((float("inf"),), 0)  # all are quarantined

    def rekey(self, request: Request) -> bool:
        """Update a request's key after a fact about its workflow.

        Return whether the state changed.
        """
        waiting = self._waiting[request.id]
        state = self._policy.state(request)
        if state == waiting.state:
            return False
        waiting.state = state
        key = self._policy.key(request, state)
        waiting.epoch = self._estimates.epoch
        if key != waiting.key and not waiting.aside:
            waiting.key = key  # the entry with the old key is dead now
            self.by_key.push((key, waiting.seq, request.id), len(self._waiting))
        return True

    def ahead_of(self, request_id: str) -> float:
        """Estimate how many requests would be dispatched before this one in the current order."""
        me = self._waiting[request_id]
        self._front.put_back()
        seen = ahead = 0
        for key, seq, other_id in self.by_key.some(_LOOKED_AT):
            other = self._waiting.get(other_id)
            if other is not None and other is not me and other.key is key:
                seen += 1
                ahead += other.overdue_at is not None or (key, seq) < (me.key, me.seq)
        return max(0.0, ahead / max(1, seen) * (len(self) - 1) - self._backfill - 1)

    def start_renewing(self) -> None:
        """Start to recompute all keys after learning, gradually, as `by_key` is moved.

        The key of a request at the top is always current.
        """
        self._front.put_back()
        self.by_key.start_moving()

    def first(self, room: InstanceRoom, at: int) -> Turn | None:
        """Return the next request to dispatch; None if none may be dispatched.

        That is the first overdue request if it fits; else a request with retained memory; else the
        first in policy order that fits beyond what is reserved for the overdue one.
        """
        self.note_time(at)
        overdue = self.overdue()
        if overdue is not None:
            if room.fits(overdue):
                returned = self._waiting[overdue.id].is_bounced
                return Turn(overdue, "returned" if returned else "overdue")
            if not room.exclude_for(overdue):
                return None
        if (turn := self._expected_back(room)) is not None:
            return turn
        return self._by_policy(room, at)

    def pop_dispatched(self, request_id: str, reason: Reason) -> Request:
        """Remove a request that is dispatched now."""
        self.guard.settle_dispatch(self._waiting[request_id], first=reason == "overdue")
        return self.remove(request_id)

    def _expected_back(self, room: InstanceRoom) -> Turn | None:
        here = filter(None, map(self._waiting.get, room.expected_back()))
        for waiting in islice(here, self._backfill + 1):
            if not waiting.aside and room.fits(waiting.request):
                return Turn(waiting.request, "kept")
        return None

    def _by_policy(self, room: InstanceRoom, at: int) -> Turn | None:
        waiting, passed_over = self._waiting, 0
        for head in self._front.entries(1):
            first = waiting[head[2]]
            if room.fits(first.request):
                return Turn(first.request, "first")
            if self._has_been_passed_over(first, at):
                room.reserve(first.request)
            passed_over = 1
        requests = self._few.of(self._front.entries(self._backfill + 1), waiting)
        while passed_over < len(requests):
            passed_over += room.refused(self._few.behind(passed_over))
            if passed_over < len(requests):
                if room.fits(requests[passed_over]):
                    return Turn(requests[passed_over], "backfill")
                passed_over += 1
        return None

    def _has_been_passed_over(self, waiting: WaitingRequest, at: int) -> bool:
        """Return whether the first request, which does not fit, was passed over for long enough."""
        since = waiting.passed_over_at
        waiting.passed_over_at = since = at if since is None else since
        return at - since >= self._passed_over * waiting.work_us

    def note_time(self, at: int) -> None:
        """Mark the calls whose workflows have waited too long as overdue."""
        self.guard.note_time(at)

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


class Front(Generic[Entry]):
    """Up to `most` first entries, in order. While they are here, they are not in the heap."""

    def __init__(
        self, heap: LazyHeap[Entry], renew: Callable[[Entry], Entry | None], most: int
    ) -> None:
        """Create an empty front of a heap, of at most `most` entries. `renew` is the heap's."""
        self._heap, self._renew, self._most = heap, renew, most
        self._entries: list[Entry] = []

    def entries(self, count: int) -> list[Entry]:
        """Return the first `count` live entries, or fewer if there are not that many."""
        entries, heap = self._entries, self._heap
        if entries:
            entries = self._entries = self._up_to_date()
            while entries and (top := heap.top()) is not None and top < entries[-1]:
                heap.pop()
                insort(entries, top)
                if len(entries) > self._most:
                    heap.put_back(entries.pop())
        while len(entries) < count and (entry := heap.pop()) is not None:
            entries.append(entry)
        return entries[:count]

    def clear(self) -> None:
        """Drop all entries, in the heap too, because all are dead."""
        self._entries = []
        self._heap.clear()

    def put_back(self) -> None:
        """Return all entries to the heap."""
        for entry in self._entries:
            self._heap.put_back(entry)
        self._entries = []

    def _up_to_date(self) -> list[Entry]:
        """Return the live, unchanged entries; changed ones are returned to the heap."""
        kept = []
        for entry in self._entries:
            renewed = self._renew(entry)
            if renewed is entry:
                kept.append(entry)
            elif renewed is not None:
                self._heap.put_back(renewed)
        return kept


class FirstFew:
    """Requests of the first few entries.

    While the entries stay the same, the identical list objects are returned, so callers can cache
    what they know about them.
    """

    def __init__(self) -> None:
        self._entries: list[KeyEntry] = []
        self._requests: list[Request] = []
        self._behind_first: list[Request] = []

    def of(self, entries: list[KeyEntry], waiting: Mapping[str, WaitingRequest]) -> list[Request]:
        if entries != self._entries:
            self._entries = entries
            self._requests = [waiting[request_id].request for *_, request_id in entries]
            self._behind_first = self._requests[1:]
        return self._requests

    def behind(self, count: int) -> list[Request]:
        """Return the requests behind the first `count`."""
        return self._behind_first if count == 1 else self._requests[count:]
