"""The end of a log: the calls that ended lately, and the instances that were there, bounded."""

from collections import Counter, deque
from pathlib import Path
from typing import Literal

import msgspec

from kairos.core import (
    Arrived,
    CallRow,
    CallTracker,
    Instance,
    InstanceJoined,
    InstanceLeft,
    PolicyChosen,
    Record,
    SetupError,
    WorkflowKey,
    workflow_key,
)
from kairos.observe import read_limits, read_recent
from kairos.simulate.recording import has_length

MOST_CALLS = 20_000


class InstanceChange(msgspec.Struct, frozen=True):
    at: int
    what: Literal["join", "leave"]
    instance_id: str


class RecentLog:
    """Contents of a log from `since_at` (µs) on, with the last `most_calls` ended calls.

    From the instant `begins_at` on all calls are included, under one policy.

    Raises:
        SetupError: The log is missing.
        InvalidFile: A line of it is not a record.
    """

    def __init__(self, directory: Path, since_at: int, most_calls: int = MOST_CALLS) -> None:
        if not directory.is_dir():
            raise SetupError(f"there is no directory {directory}")
        self.rows: deque[CallRow] = deque()
        self.begins_at, self.ends_at = since_at, -1
        self.limits: dict[str, Instance] = {each.id: each for each in read_limits(directory)}
        self.at_first: set[str] = set()  # instances that were there when it begins
        self.changes: list[InstanceChange] = []
        self._told: dict[str, str] = {}  # of each instance, what happened last
        self._most = most_calls
        self._in_flight: Counter[WorkflowKey] = Counter()
        self._tracker = CallTracker()
        for record in read_recent(directory, since_at, (InstanceJoined, InstanceLeft)):
            self._take(record)
        if self.ends_at < 0:
            raise SetupError(f"the log in {directory} says nothing of that time")
        self._tell_first()

    def _take(self, record: Record) -> None:
        event = record.event
        if type(event) is InstanceJoined:
            self.limits[event.instance.id] = event.instance
            self._change(record.at, "join", event.instance.id)
        elif type(event) is InstanceLeft:
            self._change(record.at, "leave", event.instance_id)
        elif type(event) is PolicyChosen:
            self.begins_at = max(self.begins_at, record.at)
        if record.at < self.begins_at:
            return
        self.ends_at = max(self.ends_at, record.at)
        if type(event) is Arrived and self._tracker.row(event.request.id) is None:
            self._in_flight[workflow_key(event.request)] += 1
        for row in self._tracker.observe(record):
            self._in_flight[workflow_key(row.request)] -= 1
            self.rows.append(row)
            if len(self.rows) > self._most:
                self.begins_at = max(self.begins_at, self.rows.popleft().ended_at or 0)

    def _change(self, at: int, what: Literal["join", "leave"], instance_id: str) -> None:
        """Note a change of an instance. Updated limits are not a change."""
        if self._told.get(instance_id) != what:
            self._told[instance_id] = what
            self.changes.append(InstanceChange(at, what, instance_id))

    def _tell_first(self) -> None:
        """Determine the instances present at the beginning.

        They include instances that served, but about which the log says nothing, or first that they
        left.
        """
        first = {each.instance_id: each.what for each in reversed(self.changes)}
        served = {row.instance_id for row in self.rows}
        here = {name for name in self.limits if first.get(name) == "leave" or name in served}
        here -= {name for name, what in first.items() if what == "join"}
        for each in self.changes:
            if each.at <= self.begins_at:
                here = (
                    here | {each.instance_id} if each.what == "join" else here - {each.instance_id}
                )
        self.at_first = here
        self.changes = [each for each in self.changes if each.at > self.begins_at]

    def whole_workflows(self) -> dict[WorkflowKey, list[CallRow]]:
        """Return the workflows that began and ended in this time, with all calls answered."""
        found: dict[WorkflowKey, list[CallRow]] = {}
        for row in self.rows:
            found.setdefault(workflow_key(row.request), []).append(row)
        return {key: rows for key, rows in found.items() if self._is_whole(key, rows)}

    def _is_whole(self, key: WorkflowKey, rows: list[CallRow]) -> bool:
        began_at = min(row.request.workflow_started_at for row in rows)
        return (
            began_at >= self.begins_at and not self._in_flight[key] and all(map(has_length, rows))
        )
