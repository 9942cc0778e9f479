"""Calls as they went -> calls of a workflow file: for replay and simulation."""

from bisect import bisect_right, insort
from collections import defaultdict
from collections.abc import Generator, Iterable, Iterator
from pathlib import Path

from msgspec.structs import replace

from kairos.core import (
    AppKey,
    CallGraph,
    CallRow,
    LearntJoins,
    SeenJoin,
    WorkflowKey,
    agent_key_of,
    span_of,
    workflow_key,
)
from kairos.simulate.workload import FileCall, write_workflows
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
