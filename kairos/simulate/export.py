"""Export of a log of facts to a workflow file."""

import re
from collections import Counter, defaultdict
from datetime import datetime
from pathlib import Path
from typing import Literal

import msgspec

from kairos.core import SECOND, Arrived, CallRow, CallTracker, SetupError, WorkflowKey, workflow_key
from kairos.observe import read_facts
from kairos.simulate.recording import has_length, workflow_calls
from kairos.simulate.workload import write_workflows

_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}

# What becomes of a workflow. It began before the instant that was asked for, or before the log; one
# of its calls has not ended; no call was answered with token counts.
Fate = Literal["exported", "began before", "under way", "without lengths"]


class Exported(msgspec.Struct, frozen=True):
    """Numbers of exported calls, and of all workflows of the log by their fate."""

    calls: int
    workflows: dict[Fate, int]


def parse_since(text: str, now_us: int, what: str = "begin") -> int | None:
    """Parse an instant (`2h` ago, `2025-06-30` or `2025-06-30T12:00`), in µs since the epoch.

    Local time is assumed without a zone. None for `all`. `what` completes the error message.

    Raises:
        SetupError: The text has another form.
    """
    if text == "all":
        return None
    if duration := re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)([smhd])", text):
        return now_us - round(float(duration[1]) * _SECONDS[duration[2]] * SECOND)
    try:
        return round(datetime.fromisoformat(text).timestamp() * SECOND)
    except (ValueError, OverflowError):
        raise SetupError(
            f"'{text}' is not a time to {what} at: write a duration (30s, 15m, 2h, 7d), a date, an "
            "instant (2025-06-30T12:00), or all"
        ) from None


def export_workflows(directory: Path, since_at: int | None, path: Path) -> Exported:
    """Write the workflows of a log that began at `since_at` or later to a workflow file.

    A workflow is complete or left out. It begins with its user's task; one that began before the
    log may have lost its first calls, and is left out, too; only `since_at` None takes all. A
    workflow with an unfinished call is always left out.

    Raises:
        SetupError: The log is missing, or has nothing to export; or the file cannot be written.
        InvalidFile: A line of the log is not a record.
    """
    log = LoggedWorkflows(directory)
    begins_at = None if since_at is None else max(since_at, log.begins_at)
    chosen: list[CallRow] = []
    fates: Counter[Fate] = Counter()
    for key, rows in log.workflows.items():
        fate = _fate(rows, log.in_flight[key], begins_at)
        fates[fate] += 1
        if fate == "exported":
            chosen += rows
    if not chosen:
        found = ", ".join(f"{number} {fate}" for fate, number in sorted(fates.items()))
        raise SetupError(f"no workflow in {directory} can be exported ({found or 'there is none'})")
    calls = list(workflow_calls(chosen))
    write_workflows(path, calls)
    return Exported(len(calls), dict(fates))


def _fate(rows: list[CallRow], in_flight: int, begins_at: int | None) -> Fate:
    if in_flight:
        return "under way"
    if begins_at is not None and min(r.request.workflow_started_at for r in rows) < begins_at:
        return "began before"
    return "exported" if any(map(has_length, rows)) else "without lengths"


class LoggedWorkflows:
    """All workflows of a log, with their calls that ended.

    Raises:
        SetupError, InvalidFile: See `export`.
    """

    def __init__(self, directory: Path) -> None:
        if not directory.is_dir():
            raise SetupError(f"there is no directory {directory}")
        self.workflows: dict[WorkflowKey, list[CallRow]] = defaultdict(list)
        self.in_flight: Counter[WorkflowKey] = Counter()
        self.begins_at = -1
        tracker = CallTracker()
        for record in read_facts(directory):
            if self.begins_at < 0:
                self.begins_at = record.at
            if isinstance(record.event, Arrived):
                request = record.event.request
                self.in_flight[workflow_key(request)] += tracker.row(request.id) is None
                self.workflows[workflow_key(request)]  # it may have no call that ended
            for row in tracker.observe(record):
                self.in_flight[workflow_key(row.request)] -= 1
                self.workflows[workflow_key(row.request)].append(row)
        if self.begins_at < 0:
            raise SetupError(f"there are no facts in {directory}: name the directory of a log")
