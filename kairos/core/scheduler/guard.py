"""Starvation guard: bounds a workflow's waiting time in relation to its work.

Not in the papers.

A workflow waits while any of its calls waits. Once it has waited for `PATIENCE` times its own work,
as currently estimated, plus `GRACE_US`, its waiting calls are overdue. The workflow ages, not the
call: a hundred calls at once age no faster than one, and more work has to wait longer.

The call that became overdue first is dispatched before all others, but overdue calls get at most
`SHARE` of the work that the queue dispatches: after each of them, calls in policy order are
dispatched until they have had the rest. Hence an overdue call is dispatched after at most

    (work of the calls overdue before it) / `SHARE` + (1 / `SHARE` + 1) times the largest call

under any policy, any arrivals, and any error of the estimates. `tests/property/core/test_guard.py`
checks this bound. Under lasting overload, when eventually every long workflow is overdue, the
policy still orders three quarters of the work.

Each call is checked when it would become overdue, by the estimate at that time. If the estimate has
grown, the next check follows after at least another `_PART` of its wait. So the number of checks of
a call is logarithmic in its wait, and it becomes overdue late by at most that part.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from math import inf
from typing import Protocol

from kairos.core.model import SECOND, Request
from kairos.core.scheduler.heap import LazyHeap
from kairos.core.scheduler.waiting import NumberEntry, WaitingRequest
from kairos.core.scheduler.work_estimates import WorkEstimates

PATIENCE = 0.1  # times the workflow's work
GRACE_US = 10 * SECOND
SHARE = 0.25  # of the work that a queue sends
_PART = 0.125
_LATEST_US = 1 << 60  # maximum delay of a check: in effect never


class Guard(Protocol):
    """Decides which calls of one queue are overdue. Every operation is O(log n) amortised."""

    def watch_call(self, waiting: WaitingRequest, at: int, patience_us: int | None) -> None:
        """Record a call that starts to wait, for `patience_us` at most, if the policy sets that."""

    def watch_returned(self, waiting: WaitingRequest) -> None:
        """Record a call returned by an instance: it precedes all others, in order of its number."""

    def note_time(self, at: int) -> None:
        """Mark the calls that are overdue by now."""

    def first(self) -> Request | None:
        """Return the overdue call to dispatch before all others now, if any."""

    def in_turn(
        self, overdue: Iterable[WaitingRequest], all_by_policy: Iterable[WaitingRequest]
    ) -> Iterator[tuple[WaitingRequest, bool]]:
        """Merge overdue calls and all calls in policy order, as they would be dispatched now.

        Yields each call with whether it is dispatched because it is overdue.
        """

    def settle_dispatch(self, waiting: WaitingRequest, *, first: bool) -> None:
        """Record a dispatched call. `first`: it was dispatched because it was overdue."""

    def clear(self) -> None:
        """Forget everything, because the queue is empty."""


MakeGuard = Callable[[WorkEstimates, Mapping[str, WaitingRequest]], Guard]


class OverdueCalls:
    """Overdue calls of one queue, in order; shared by all guards."""

    def __init__(self, waiting: Mapping[str, WaitingRequest]) -> None:
        """Create an empty set for a queue whose calls are in `waiting`, by id."""
        self._waiting = waiting
        self._by_number: LazyHeap[NumberEntry] = LazyHeap(self._if_here)

    def __len__(self) -> int:
        return len(self._by_number)

    def add(self, waiting: WaitingRequest, number: int) -> None:
        """Make a call overdue; lower numbers are dispatched first."""
        waiting.overdue_at = number
        self._by_number.push((number, waiting.seq, waiting.request.id), len(self._waiting))

    def first(self) -> WaitingRequest | None:
        entry = self._by_number.top()
        return None if entry is None else self._waiting[entry[2]]

    def clear(self) -> None:
        self._by_number.clear()

    def if_not_overdue(self, entry: NumberEntry) -> NumberEntry | None:
        """Return the entry of another heap while its call waits and is not overdue, else None."""
        waiting = self._waiting.get(entry[2])  # perhaps a later visit of the same call
        is_meant = waiting is not None and waiting.seq == entry[1] and waiting.overdue_at is None
        return entry if is_meant else None

    def _if_here(self, entry: NumberEntry) -> NumberEntry | None:
        waiting = self._waiting.get(entry[2])
        here = waiting is not None and waiting.seq == entry[1] and not waiting.aside
        return entry if here else None


class PatienceGuard:
    """Default guard, as described in this module."""

    def __init__(
        self,
        estimates: WorkEstimates,
        waiting: Mapping[str, WaitingRequest],
        patience: float | None = None,
        grace_us: int | None = None,
        share: float | None = None,
    ) -> None:
        """Guard one queue, with its calls by id.

        The remaining arguments default to the module's constants. With infinite `patience` a call
        is overdue only if the policy's own limit says so.
        """
        self._estimates, self._waiting = estimates, waiting
        self._patience = PATIENCE if patience is None else patience
        self._grace_us = GRACE_US if grace_us is None else grace_us
        self._share = SHARE if share is None else share
        self._owed_us = 0.0
        self._overdue = OverdueCalls(waiting)  # ordered by when they became overdue
        self._by_due_at: LazyHeap[NumberEntry] = LazyHeap(self._overdue.if_not_overdue)

    def watch_call(self, waiting: WaitingRequest, at: int, patience_us: int | None) -> None:
        left_us = self._left_us(waiting.request, at)
        if patience_us is not None:
            waiting.impatient_at = at + patience_us
            left_us = min(left_us, patience_us)
        if left_us < inf:
            # Due now at the earliest: calls that are already overdue precede it.
            self._look_at(waiting, at, left_us)

    def watch_returned(self, waiting: WaitingRequest) -> None:
        self._overdue.add(waiting, waiting.seq)

    def note_time(self, at: int) -> None:
        while (entry := self._by_due_at.top()) is not None and entry[0] <= at:
            self._by_due_at.pop()
            waiting = self._waiting[entry[2]]
            left_us = self._left_us(waiting.request, at)
            impatient_at = waiting.impatient_at
            if left_us <= 0 or (impatient_at is not None and impatient_at <= at):
                self._overdue.add(waiting, entry[0])
                continue
            left_us = max(left_us, _PART * (at - waiting.request.arrived_at), 1.0)
            if impatient_at is not None:
                left_us = min(left_us, impatient_at - at)
            self._look_at(waiting, at, left_us)

    def first(self) -> Request | None:
        waiting = self._overdue.first()
        if waiting is None or not self._may_precede(waiting, self._owed_us):
            return None
        return waiting.request

    def in_turn(
        self, overdue: Iterable[WaitingRequest], all_by_policy: Iterable[WaitingRequest]
    ) -> Iterator[tuple[WaitingRequest, bool]]:
        gone: set[str] = set()
        owed_us, late = self._owed_us, iter(overdue)
        due = next(late, None)
        for each in all_by_policy:
            while due is not None and self._may_precede(due, owed_us):
                if due.request.id not in gone:
                    yield due, True
                    gone.add(due.request.id)
                    owed_us = self._owed_after(due, owed_us, first=True)
                due = next(late, None)
            if each.request.id not in gone:
                yield each, False
                gone.add(each.request.id)
                owed_us = self._owed_after(each, owed_us, first=False)

    def settle_dispatch(self, waiting: WaitingRequest, *, first: bool) -> None:
        self._owed_us = self._owed_after(waiting, self._owed_us, first=first)

    def clear(self) -> None:
        self._owed_us = 0.0
        self._by_due_at.clear()
        self._overdue.clear()

    def _may_precede(self, waiting: WaitingRequest, owed_us: float) -> bool:
        return waiting.is_bounced or owed_us <= 0

    def _owed_after(self, waiting: WaitingRequest, owed_us: float, *, first: bool) -> float:
        """Return the work that policy-ordered calls are owed before the next overdue call."""
        if waiting.is_bounced:
            return owed_us
        if first:
            return owed_us + waiting.work_us * (1 - self._share) / self._share
        return owed_us - waiting.work_us if owed_us > 0 else owed_us

    def _look_at(self, waiting: WaitingRequest, at: int, left_us: float) -> None:
        due_at = at + int(min(max(left_us, 0.0), _LATEST_US))
        self._by_due_at.push((due_at, waiting.seq, waiting.request.id), len(self._waiting))

    def _left_us(self, request: Request, at: int) -> float:
        """Return how much longer the request's workflow may wait."""
        if self._patience == inf:
            return inf
        may_us = self._patience * self._estimates.whole_us(request) + self._grace_us
        return may_us - self._estimates.positions.waited_us(request.id, at)


# With this guard a call is overdue only by the policy's own limit.
NO_GUARD: MakeGuard = partial(PatienceGuard, patience=inf)
