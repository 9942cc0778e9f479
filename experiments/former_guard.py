"""The starvation guard as it was: by calls, by what overtook them, and by half of the longest wait.

When a call arrives, the predicted work that waits before it, its own included, is written down.
Once what was sent since then comes to `OVERTAKEN` times as much, the call is overdue; so it is
after half of the longest wait that is configured, or when the policy's own patience ends. What is
overdue goes first, in order of arrival, however much of it there is. Deviation: a call is overdue
with the one that overtakes it by too much, not before that is sent, so one more overtakes it.
"""

from collections.abc import Iterable, Iterator, Mapping

from kairos.core import Request, WorkEstimates
from kairos.core.scheduler.guard import OverdueCalls
from kairos.core.scheduler.heap import LazyHeap
from kairos.core.scheduler.queue import MAX_WAIT_US
from kairos.core.scheduler.waiting import NumberEntry, WaitingRequest

OVERTAKEN = 9


class FormerGuard:
    """See `kairos.core.scheduler.guard.Guard`."""

    def __init__(
        self,
        estimates: WorkEstimates,  # noqa: ARG002
        waiting: Mapping[str, WaitingRequest],
        overtaken: float = OVERTAKEN,
        longest_us: int = MAX_WAIT_US // 2,
    ) -> None:
        self._waiting, self._overtaken, self._longest_us = waiting, overtaken, longest_us
        self._sent_us = 0
        self._overdue = OverdueCalls(waiting)  # by number of arrival
        self._by_due_work: LazyHeap[NumberEntry] = LazyHeap(self._overdue.if_not_overdue)
        self._by_due_at: LazyHeap[NumberEntry] = LazyHeap(self._overdue.if_not_overdue)

    def watch_call(self, waiting: WaitingRequest, at: int, patience_us: int | None) -> None:
        waiting_us = sum(each.work_us for each in self._waiting.values())
        n = len(self._waiting)
        longest_us = self._longest_us
        due_at = at + (longest_us if patience_us is None else min(patience_us, longest_us))
        due_us = self._sent_us + self._overtaken * waiting_us
        self._by_due_work.push((due_us, waiting.seq, waiting.request.id), n)
        self._by_due_at.push((due_at, waiting.seq, waiting.request.id), n)

    def watch_returned(self, waiting: WaitingRequest) -> None:
        self._overdue.add(waiting, waiting.seq)

    def note_time(self, at: int) -> None:
        for entries, now in (self._by_due_at, at), (self._by_due_work, self._sent_us):
            while (entry := entries.top()) is not None and entry[0] <= now:
                self._overdue.add(self._waiting[entry[2]], entry[1])

    def first(self) -> Request | None:
        waiting = self._overdue.first()
        return None if waiting is None else waiting.request

    def in_turn(
        self, overdue: Iterable[WaitingRequest], all_by_policy: Iterable[WaitingRequest]
    ) -> Iterator[tuple[WaitingRequest, bool]]:
        yield from ((each, True) for each in overdue)
        yield from ((each, False) for each in all_by_policy if each.overdue_at is None)

    def settle_dispatch(self, waiting: WaitingRequest, *, first: bool) -> None:  # noqa: ARG002
        self._sent_us += waiting.work_us

    def clear(self) -> None:
        self._by_due_work.clear()
        self._by_due_at.clear()
        self._overdue.clear()
