"""What remained of a workflow from each of its calls on: kairos paper, 4.3."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec

from kairos.core.orchestrator.graph import CallGraph, Node
from kairos.core.orchestrator.spans import Span


class Remaining(msgspec.Struct, frozen=True, kw_only=True):
    """The critical path from a call on, the call included."""

    work_us: int  # execution latency of its calls
    stages: int  # its calls
    gap_us: int  # between its calls, while nothing ran that they had to wait for: tools, users
    # This call or one that followed failed or was cancelled, in its last attempt: what would have
    # remained is not known, but that it is no less.
    censored: bool


def remaining(graph: CallGraph) -> dict[str, Remaining]:
    """What remained from each call on. O(n log n), without recursion.

    A call precedes those that it led to, and a stage, with all that sits under it, precedes the
    next stage of the same caller. Calls of one stage do not precede each other: parallel siblings
    do not count into each other. Of all that follows, what takes most work is the path. A join
    counts into all of its parents.

    Queueing is neither work nor gap, as far as spans tell it. What passed from the end of what
    came before to the last attempt at a call is gap, its earlier attempts included.
    """
    result: dict[str, Remaining] = {}
    longest: dict[_Begin, _Path] = {}
    for step in reversed(list(_in_order(graph))):
        span = step.node.span
        rest = _NOTHING
        for begin in step.followed_by:
            rest = _longer(rest, longest.get(begin, _NOTHING))
        path = _Path(
            span.execution_us + rest.work_us,
            1 + rest.stages,
            rest.gap_us,
            rest.censored or span.outcome != "finished",
        )
        result[span.id] = Remaining(**path._asdict())
        path = path._replace(gap_us=path.gap_us + step.gap_us)
        for begin in step.begins:
            longest[begin] = _longer(path, longest.get(begin, _NOTHING))
    return result


def remaining_of_chain(spans: Sequence[Span]) -> dict[str, Remaining] | None:
    """The same of calls each of which was led to by the one before it, as ids tell, without a
    graph; None: these are not so. `spans`: one of each call, in order of arrival."""
    before: str | None = None
    for span in spans:
        if span.parent_ids != (() if before is None else (before,)):
            return None
        before = span.id
    result: dict[str, Remaining] = {}
    work_us, gap_us, censored, began_at = 0, 0, False, None
    for stages, span in enumerate(reversed(spans), start=1):
        if began_at is not None:
            gap_us += max(0, began_at - span.finished_at)
        work_us += span.execution_us
        censored = censored or span.outcome != "finished"
        result[span.id] = Remaining(
            work_us=work_us, stages=stages, gap_us=gap_us, censored=censored
        )
        began_at = span.started_at - span.queued_us
    return result


# What a path begins with: any call of a stage, said as its caller and the stage's index; or any
# join of a call, said as that call.
_Begin = tuple[str | None, int] | str


class _Path(NamedTuple):
    work_us: int
    stages: int
    gap_us: int
    censored: bool


_NOTHING = _Path(0, 0, 0, censored=False)


def _longer(one: _Path, other: _Path) -> _Path:
    return max(one, other)._replace(censored=one.censored or other.censored)


class _Step(NamedTuple):
    node: Node
    begins: list[_Begin]
    followed_by: list[_Begin]
    gap_us: int  # before it


class _Child(NamedTuple):
    call: str
    stage: _Begin
    then: list[_Begin]  # after its branch
    ready_at: int  # the stage before it had ended


def _in_order(graph: CallGraph) -> Iterator[_Step]:
    """All calls, none before one that precedes it."""
    nodes = graph.nodes
    to_do = _children(graph, None, [], 0)
    while to_do:
        child = to_do.pop()
        node = nodes[child.call]
        span = node.span
        joined = [parent for parent in node.parents if parent != node.caller]
        ready_at = max([child.ready_at, *(nodes[parent].span.finished_at for parent in joined)])
        under = _children(graph, child.call, child.then, span.finished_at)
        yield _Step(
            node,
            begins=[child.stage, *joined],
            followed_by=[child.call, *([under[-1].stage] if under else child.then)],
            gap_us=max(0, span.started_at - span.queued_us - ready_at),
        )
        to_do += under


def _children(
    graph: CallGraph, caller: str | None, then: list[_Begin], ready_at: int
) -> list[_Child]:
    """The children of a call, those of the last stage first."""
    stages = graph.stages(caller)
    found: list[_Child] = []
    for index, stage in enumerate(stages):
        following: list[_Begin] = [(caller, index + 1)] if index + 1 < len(stages) else then
        found += [_Child(call, (caller, index), following, ready_at) for call in stage]
        ready_at = max(graph.nodes[call].branch_finished_at for call in stage)
    return found[::-1]
