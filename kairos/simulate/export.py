"""Calls as they went, of a log or in memory, as a workflow file: for replay and simulation."""

import re
from bisect import bisect_right, insort
from collections import Counter, defaultdict
from collections.abc import Generator, Iterable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Literal

import msgspec
from msgspec.structs import replace

from kairos.core import (
    SECOND,
    AppKey,
    Arrived,
    CallGraph,
    CallRow,
    CallTracker,
    LearntJoins,
    SeenJoin,
    SetupError,
    WorkflowKey,
    agent_key_of,
    span_of,
    workflow_key,
)
from kairos.observe import read_facts
from kairos.simulate.workload.workflow_file import FileCall, write_workflows
from kairos.simulate.workload.workflows import OUTSIDE


def has_length(row: CallRow) -> bool:
    """A call without a whole answer has no length to replay."""
    return row.outcome == "finished" and bool(row.prompt_tokens and row.completion_tokens)


def write_recording(path: Path, rows: Iterable[CallRow]) -> None:
    """Write calls that ended as a workflow file, for replay and simulation.

    Raises:
        SetupError: The file cannot be written.
    """
    write_workflows(path, workflow_calls(rows))


def workflow_calls(rows: Iterable[CallRow]) -> Iterator[FileCall]:
    """Yield the calls of each workflow in the order that the rebuilt graph requires.

    Calls that waited for the same number of calls before them are one parallel group: if branches
    of several calls run concurrently, their second calls wait for all of the first. The format has
    no other branches; not in the paper. A call's gap is the time since the last call before it
    ended: agents and tools, without queueing. Workflows of several tenants are named after them.
    An upstream without an earlier call, since it made none or was left out, is not written. Joins
    that follow only from names are first learnt from all of these workflows.
    """
    workflows: dict[WorkflowKey, dict[str, CallRow]] = defaultdict(dict)
    for row in rows:
        if row.outcome == "finished":
            workflows[workflow_key(row.request)][row.request.id] = row  # a repeated one: the last
    several = len({tenant for tenant, _ in workflows}) > 1
    joins = LearntJoins()
    for calls in workflows.values():
        for seen in _graph(calls, joins).sightings():
            joins.add(SeenJoin(_app(calls), seen))
    for (tenant, workflow_id), calls in workflows.items():
        name = f"{tenant}/{workflow_id}" if several else workflow_id
        yield from _calls(name, calls, _graph(calls, joins))


def _app(rows: dict[str, CallRow]) -> AppKey:
    return agent_key_of(next(iter(rows.values())).request)[:2]


def _graph(rows: dict[str, CallRow], joins: LearntJoins) -> CallGraph:
    graph = CallGraph(known=joins.of(_app(rows)))
    for row in rows.values():
        graph.add(span_of(row))
    return graph


def _calls(workflow_id: str, rows: dict[str, CallRow], graph: CallGraph) -> Iterator[FileCall]:
    began_at = min(row.request.workflow_started_at for row in rows.values())
    ends: list[int] = []  # of the calls of levels before, ascending
    upstreams: set[str | None] = {None, *OUTSIDE}
    index = 0
    for level, ids in enumerate(levels(graph)):
        of_level = sorted((rows[each] for each in ids), key=lambda row: row.request.arrived_at)
        with_length = [row for row in of_level if has_length(row)]
        group = f"level-{level}" if len(with_length) > 1 else None
        for row in with_length:
            ended_before = bisect_right(ends, row.request.arrived_at)
            waited_for = ends[ended_before - 1] if ended_before else began_at
            call = _call(workflow_id, row, index, group, began_at, waited_for)
            yield call if call.upstream in upstreams else replace(call, upstream=None)
            upstreams.add(call.agent)
            index += 1
        for row in of_level:
            insort(ends, row.ended_at or 0)


def _call(
    workflow_id: str, row: CallRow, index: int, group: str | None, began_at: int, waited_for: int
) -> FileCall:
    request = row.request
    assert row.ended_at is not None
    assert row.prompt_tokens is not None
    assert row.completion_tokens is not None
    return FileCall(
        workflow_id=workflow_id,
        app=request.app or "unknown",
        agent=request.agent or "unknown",
        upstream=request.upstream,
        call_index=index,
        prompt_tokens=row.prompt_tokens,
        completion_tokens=row.completion_tokens,
        parallel_group=group,
        gap_ms=(request.arrived_at - waited_for) // 1000,
        start_ms=(request.arrived_at - began_at) // 1000,
        end_ms=(row.ended_at - began_at) // 1000,
        workflow_start_ms=began_at // 1000,
        cached_prefix_tokens=row.cached_tokens,
        model=request.model,
    )


def levels(graph: CallGraph) -> list[list[str]]:
    """Calls by how many others must end, one after the other, before they can begin."""
    level: dict[str, int] = {}
    visits = [_visit(graph, None, 0, level)]
    free = None  # what the last visit came to
    while visits:  # a stack, since workflows go deeper than Python calls itself
        try:
            visits.append(visits[-1].send(free))
            free = None
        except StopIteration as ended:
            visits.pop()
            free = ended.value
    found: defaultdict[int, list[str]] = defaultdict(list)
    for call, its_level in level.items():
        found[its_level].append(call)
    return [found[each] for each in sorted(found)]


_Visit = Generator["_Visit", int | None, int]


def _visit(graph: CallGraph, caller: str | None, free: int, level: dict[str, int]) -> _Visit:
    """Give all under the caller their levels, from the first free one on; returns the next free."""
    for stage in graph.stages(caller):
        ends = []
        for call in stage:
            # A join may run beside a branch that it does not wait for, but never beside these.
            after = [level[parent] for parent in graph.nodes[call].parents if parent in level]
            level[call] = max([free, *(1 + each for each in after)])
            end = yield _visit(graph, call, level[call] + 1, level)
            assert end is not None
            ends.append(end)
        free = max(ends)
    return free


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
