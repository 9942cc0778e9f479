"""Workflows as a trace for Perfetto (ui.perfetto.dev), and Chrome's about:tracing.

The trace is in Chrome's JSON trace event format, as "Trace Event Format" (Google, 2016) describes
it; Perfetto has always read it, and it needs no schema. Tracks: each instance with its calls, the
queue with waiting calls and their number, and the workflows. Slices of one thread must nest, so
concurrent calls are on several threads, each on the lowest free one. Arrows lead to a call from the
calls that led to it. Instants are µs, as in facts.
"""

from collections.abc import Iterable, Iterator
from heapq import heappop, heappush
from pathlib import Path
from typing import Any

import msgspec

from kairos.core import SetupError
from kairos.observe import CallView, Snapshot, WorkflowView, explain_call, workflow_view
from kairos.simulate.export import LoggedWorkflows
from kairos.simulate.workload.workflow_file import packed_if_named_so

_QUEUE, _WORKFLOWS, _FIRST_INSTANCE = 1, 2, 10  # processes of the trace

TraceEvent = dict[str, Any]  # of the format


class _Slice(msgspec.Struct, frozen=True):
    begins: int
    ends: int
    name: str
    category: str
    said: dict[str, Any]
    parts: tuple[tuple[str, int, int], ...] = ()  # within it: name, from, to
    call: str | None = None  # whose arrows end or begin here


def write_trace(path: Path, views: Iterable[WorkflowView], until: int | None = None) -> int:
    """Write the trace of these workflows, as gzip if the name ends in `.gz`.

    Unfinished items extend to `until`, or to the last known instant. Return the number of calls.

    Raises:
        SetupError: The file cannot be written.
    """
    views = list(views)
    known = until if until is not None else max(map(_last_known, views), default=0)
    encoder, joint = msgspec.json.Encoder(), b""
    with packed_if_named_so(path) as file:
        file.write(b'{"displayTimeUnit":"ms","traceEvents":[\n')
        for event in trace_events(views, known):
            file.write(joint + encoder.encode(event))
            joint = b",\n"
        file.write(b"\n]}\n")
    return sum(len(view.calls) for view in views)


def write_trace_of_log(path: Path, directory: Path, since_at: int | None) -> int:
    """Write the trace of a log's workflows that began at `since_at` or later, with ended calls.

    Raises:
        SetupError: The log is missing or has no such workflow; or the file cannot be written.
        InvalidFile: A line of the log is not a record.
    """
    views = []
    for key, rows in LoggedWorkflows(directory).workflows.items():
        if rows and (since_at is None or rows[0].request.workflow_started_at >= since_at):
            last = {row.request.id: row for row in rows}
            ended_at = max(row.ended_at or 0 for row in last.values())
            seen = Snapshot(
                key=key,
                rows=[*last.values()],
                left_out=0,
                at=ended_at,
                ended_at=ended_at,
                idle=True,
            )
            views.append(workflow_view(seen, 0, len(last)))
    if not views:
        raise SetupError(f"no workflow in {directory} began since then and had a call that ended")
    return write_trace(path, views)


def _last_known(view: WorkflowView) -> int:
    instants = [view.started_at, view.ended_at]
    for call in view.calls:
        instants += [call.arrived_at, call.dispatched_at, call.first_token_at, call.ended_at]
    return max(each for each in instants if each is not None)


def trace_events(views: Iterable[WorkflowView], until: int) -> Iterator[TraceEvent]:
    """Yield the events, unordered in time, as the format allows."""
    waits: list[_Slice] = []
    runs: dict[str, list[_Slice]] = {}
    workflows: list[_Slice] = []
    led: list[tuple[str, str]] = []
    for view in views:
        workflows.append(_workflow_slice(view, until))
        for call in view.calls:
            name = f"{view.tenant}/{view.id}/{call.id}"
            waits.append(_wait_slice(view, call, until))
            if call.dispatch is not None and call.dispatched_at is not None:
                run = _run_slice(view, call, name, until)
                runs.setdefault(call.dispatch.instance, []).append(run)
            led += [(f"{view.tenant}/{view.id}/{parent}", name) for parent in call.parents]
    yield from _process(_QUEUE, "Queue", waits, {})
    yield from _counted(waits)
    yield from _process(_WORKFLOWS, "Workflows", workflows, {})
    places: dict[str, tuple[int, int, _Slice]] = {}
    for pid, (instance, calls) in enumerate(sorted(runs.items()), start=_FIRST_INSTANCE):
        yield from _process(pid, f"Instance {instance}", calls, places)
    yield from _arrows(led, places)


def _workflow_slice(view: WorkflowView, until: int) -> _Slice:
    ends = until if view.ended_at is None else view.ended_at
    said = {"workflow": view.id, "tenant": view.tenant, "app": view.app, "calls": view.calls_total}
    name = view.id if view.app is None else f"{view.app}: {view.id}"
    return _Slice(view.started_at, max(ends, view.started_at), name, "workflow", said)


def _wait_slice(view: WorkflowView, call: CallView, until: int) -> _Slice:
    gone_at = call.dispatched_at if call.dispatched_at is not None else call.ended_at
    ends = until if gone_at is None else gone_at
    return _Slice(
        call.arrived_at, max(ends, call.arrived_at), _name(call), "wait", _said(view, call)
    )


def _run_slice(view: WorkflowView, call: CallView, name: str, until: int) -> _Slice:
    assert call.dispatched_at is not None
    begins, first = call.dispatched_at, call.first_token_at
    ends = max(until if call.ended_at is None else call.ended_at, begins)
    parts: tuple[tuple[str, int, int], ...] = ()
    if first is not None and begins <= first <= ends:
        parts = ("prompt", begins, first), ("answer", first, ends)
    return _Slice(begins, ends, _name(call), "call", _said(view, call), parts, name)


def _name(call: CallView) -> str:
    return call.agent or "a call without a name"


def _said(view: WorkflowView, call: CallView) -> dict[str, Any]:
    return {
        "workflow": view.id,
        "tenant": view.tenant,
        "app": view.app,
        "call": call.id,
        "outcome": call.outcome,
        "prompt_tokens": call.prompt_tokens,
        "cached_tokens": call.cached_tokens,
        "completion_tokens": call.completion_tokens,
        "attempts": call.attempts,
        "why": "\n".join(explain_call(call)),
    }


def _process(
    pid: int, name: str, slices: list[_Slice], places: dict[str, tuple[int, int, _Slice]]
) -> Iterator[TraceEvent]:
    """Yield slices, on as many threads as needed. `places` receives the places of calls."""
    yield _meta("process_name", pid, 0, {"name": name})
    yield _meta("process_sort_index", pid, 0, {"sort_index": pid})
    free: list[int] = []
    busy: list[tuple[int, int]] = []  # until when, thread
    for each in sorted(slices, key=lambda found: (found.begins, found.ends)):
        while busy and busy[0][0] <= each.begins:
            heappush(free, heappop(busy)[1])
        if free:
            tid = heappop(free)
        else:
            tid = len(busy) + 1
            yield _meta("thread_name", pid, tid, {"name": f"{name} {tid}"})
            yield _meta("thread_sort_index", pid, tid, {"sort_index": tid})
        heappush(busy, (max(each.ends, each.begins + 1), tid))
        if each.call is not None:
            places[each.call] = pid, tid, each
        yield _complete(pid, tid, each.name, each.begins, each.ends, each.category, each.said)
        for part, begins, ends in each.parts:
            yield _complete(pid, tid, part, begins, ends, each.category, {})


def _meta(what: str, pid: int, tid: int, said: dict[str, Any]) -> TraceEvent:
    return {"ph": "M", "name": what, "pid": pid, "tid": tid, "args": said}


def _complete(
    pid: int, tid: int, name: str, begins: int, ends: int, category: str, said: dict[str, Any]
) -> TraceEvent:
    return {
        "ph": "X",
        "name": name,
        "cat": category,
        "pid": pid,
        "tid": tid,
        "ts": begins,
        "dur": ends - begins,
        "args": said,
    }


def _counted(waits: Iterable[_Slice]) -> Iterator[TraceEvent]:
    """Yield the number of waiting calls, each time it changes."""
    changes: dict[int, int] = {}
    for each in waits:
        changes[each.begins] = changes.get(each.begins, 0) + 1
        changes[each.ends] = changes.get(each.ends, 0) - 1
    waiting = 0
    for at in sorted(changes):
        waiting += changes[at]
        yield {
            "ph": "C",
            "name": "calls that wait",
            "pid": _QUEUE,
            "ts": at,
            "args": {"calls": waiting},
        }


def _arrows(
    led: Iterable[tuple[str, str]], places: dict[str, tuple[int, int, _Slice]]
) -> Iterator[TraceEvent]:
    """Yield an arrow from the end of each call to the beginning of each call that it led to."""
    for number, (parent, call) in enumerate(led, start=1):
        if parent not in places or call not in places:
            continue
        common = {"name": "led to", "cat": "led", "id": number}
        pid, tid, before = places[parent]
        # A slice does not have its last instant any more.
        left_at = max(before.begins, before.ends - 1)
        yield {"ph": "s", **common, "pid": pid, "tid": tid, "ts": left_at}
        pid, tid, after = places[call]
        yield {"ph": "f", "bp": "e", **common, "pid": pid, "tid": tid, "ts": after.begins}
