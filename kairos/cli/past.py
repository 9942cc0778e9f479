"""Past events from the log: figures, changes, and slow calls."""

import heapq
from collections import Counter
from pathlib import Path

from kairos.core import (
    SECOND,
    Arrived,
    Bounced,
    CallRow,
    CallTracker,
    Dispatch,
    EntitlementsChanged,
    Event,
    InstanceJoined,
    InstanceLeft,
    PolicyChosen,
    Record,
    SetupError,
    Started,
)
from kairos.gateway import Happened, Moment, PastCall, PastChange
from kairos.observe import read_recent

_BEFORE_US = 900 * SECOND  # from when on calls are followed: longer than any waits by default
_MOMENTS = 60  # at most
_CHANGES, _SLOWEST, _REASONS = 200, 20, 50


def happened(directory: Path, begins_at: int, ends_at: int) -> Happened:
    """Return what happened between two instants, µs.

    Raises:
        SetupError: The log is missing, or does not cover that time.
        InvalidFile: A line of it is not a record.
    """
    if not directory.is_dir():
        raise SetupError(f"there is no directory {directory}")
    if begins_at >= ends_at:
        raise SetupError("the time has no length")
    story = _Story(begins_at, ends_at)
    for record in read_recent(directory, begins_at - _BEFORE_US, (InstanceJoined, InstanceLeft)):
        if record.at > ends_at:
            break
        story.add_record(record)
    if not story.has_begun:
        raise SetupError(f"the log in {directory} says nothing of that time")
    return story.summary()


class _Story:
    def __init__(self, begins_at: int, ends_at: int) -> None:
        self.has_begun = False  # the log says something of that time
        self._begins_at, self._ends_at = begins_at, ends_at
        self._step = max(SECOND, -(-(ends_at - begins_at) // _MOMENTS))
        self._tracker = CallTracker()
        self._waiting: set[str] = set()
        self._running: set[str] = set()
        self._most_waiting = self._most_running = 0
        self._there: set[str] = set()  # instances
        self._counts: Counter[str] = Counter()
        self._moments: list[Moment] = []
        self._changes: list[PastChange] = []
        self._failures: Counter[str] = Counter()
        self._instances: Counter[str] = Counter()
        self._slowest: list[tuple[int, str, PastCall]] = []

    def add_record(self, record: Record) -> None:
        is_in = record.at >= self._begins_at
        self.has_begun |= is_in
        while is_in and record.at >= self._next_at():
            self._close_moment()
        self._change(record.event, record.at if is_in else None)
        if type(record.event) is Arrived:
            self._counts["arrived"] += 1
        ended = self._tracker.observe(record)
        self._follow(record)
        for row in ended:
            self._waiting.discard(row.request.id)
            self._running.discard(row.request.id)
            self._ended(row, is_in=is_in)
        self._most_waiting = max(self._most_waiting, len(self._waiting))
        self._most_running = max(self._most_running, len(self._running))
        if not is_in:
            self._counts.clear()
            self._most_waiting, self._most_running = len(self._waiting), len(self._running)

    def _follow(self, record: Record) -> None:
        event = record.event
        if type(event) is Arrived and self._tracker.row(event.request.id) is not None:
            self._waiting.add(event.request.id)
        elif type(event) is Bounced and event.request_id in self._running:
            self._running.remove(event.request_id)
            self._waiting.add(event.request_id)
        for command in record.commands:
            if type(command) is Dispatch and command.request_id in self._waiting:
                self._counts["dispatched"] += 1
                self._waiting.remove(command.request_id)
                self._running.add(command.request_id)

    def _next_at(self) -> int:
        return self._begins_at + self._step * (len(self._moments) + 1)

    def _change(self, event: Event, at: int | None) -> None:
        """Note a change. `at`: None before the requested time."""
        words = None
        if type(event) is InstanceJoined:
            if event.instance.id not in self._there:
                words = f"instance {event.instance.id} joined"
            self._there.add(event.instance.id)
        elif type(event) is InstanceLeft:
            self._there.discard(event.instance_id)
            why = "was taken out" if event.drained else "left"
            words = f"instance {event.instance_id} {why}"
        elif type(event) is Started:
            words = "Kairos started (calls open before a restart count as failed)"
        elif type(event) is PolicyChosen:
            words = f"the policy {event.policy} was chosen"
        elif type(event) is EntitlementsChanged:
            words = "weights, classes of service or quotas were changed"
        if words is not None and at is not None and len(self._changes) < _CHANGES:
            self._changes.append(PastChange(at=at, what=words))

    def _ended(self, row: CallRow, *, is_in: bool) -> None:
        assert row.outcome is not None
        self._counts[row.outcome] += 1
        if not is_in:
            return
        if row.why is not None and (row.why in self._failures or len(self._failures) < _REASONS):
            self._failures[row.why] += 1
        if row.instance_id is not None:
            self._instances[row.instance_id] += 1
        self._note(row, row.ended_at or self._ends_at, row.outcome)

    def _note(self, row: CallRow, until: int, outcome: str) -> None:
        request = row.request
        took_us = until - request.arrived_at
        gone_at = until if row.dispatched_at is None else row.dispatched_at
        call = PastCall(
            tenant=request.tenant,
            workflow_id=request.workflow_id,
            app=request.app,
            agent=request.agent,
            instance=row.instance_id,
            waited_s=(gone_at - request.arrived_at) / SECOND,
            took_s=took_us / SECOND,
            outcome=outcome,
            why=row.why,
        )
        entry = took_us, request.id, call
        if len(self._slowest) < _SLOWEST:
            heapq.heappush(self._slowest, entry)
        elif entry[:2] > self._slowest[0][:2]:
            heapq.heapreplace(self._slowest, entry)

    def _close_moment(self) -> None:
        counts = self._counts
        self._moments.append(
            Moment(
                at=self._next_at() - self._step,
                arrived=counts["arrived"],
                dispatched=counts["dispatched"],
                finished=counts["finished"],
                failed=counts["failed"],
                refused=counts["refused"],
                cancelled=counts["cancelled"],
                waiting=self._most_waiting,
                running=self._most_running,
            )
        )
        counts.clear()
        self._most_waiting, self._most_running = len(self._waiting), len(self._running)

    def summary(self) -> Happened:
        while self._next_at() <= self._ends_at:
            self._close_moment()
        for outcome, names in (("waits", self._waiting), ("runs", self._running)):
            for row in filter(None, map(self._tracker.row, names)):
                self._note(row, self._ends_at, outcome)
        return Happened(
            begins_at=self._begins_at,
            ends_at=self._ends_at,
            moments=self._moments,
            changes=self._changes,
            failures=dict(self._failures.most_common()),
            instances=dict(self._instances.most_common()),
            slowest=[call for *_, call in sorted(self._slowest, reverse=True)],
        )
