"""Remaining work of a workflow from each of its calls on (kairos paper, 4.3)."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from kairos.core.orchestrator.graph import CallGraph, Node
from kairos.core.orchestrator.spans import Span


class Remaining(NamedTuple):
    """Critical path from a call on, the call included."""

    work_us: int  # execution latency of the path's calls
    stages: int  # number of calls on the path
    gap_us: int  # time between the path's calls spent outside of LLM calls: tools, users
    # The last attempt at this call, or at one after it, failed or was cancelled. So the values are
    # only a lower bound.
    censored: bool


def remaining_work(graph: CallGraph) -> dict[str, Remaining]:
    """Return the remaining work from each call on, in O(n log n), without recursion.

    A call precedes the calls it led to, and a stage, with everything under it, precedes the next
    stage of the same caller. Calls of one stage do not precede each other, so parallel siblings do
    not count into each other. Among all that follows a call, the path with most work counts. A join
    counts into all of its parents. Queueing is neither work nor gap, as far as the spans show it.
    The time from the end of the predecessors to the last attempt at a call is gap, earlier attempts
    included.
    """
    result: dict[str, Remaining] = {}
    longest: dict[_Begin, Remaining] = {}
    for step in reversed(list(_in_order(graph))):
        span = step.node.span
        rest = _NOTHING
        for begin in step.followed_by:
            rest = _longer(rest, longest.get(begin, _NOTHING))
        path = Remaining(
            span.execution_us + rest.work_us,
            1 + rest.stages,
            rest.gap_us,
            rest.censored or span.outcome != "finished",
        )
        result[span.id] = path
        path = path._replace(gap_us=path.gap_us + step.gap_us)
        for begin in step.begins:
            longest[begin] = _longer(path, longest.get(begin, _NOTHING))
    return result


def remaining_of_chain(spans: Sequence[Span]) -> dict[str, Remaining] | None:
    """Return the same as `remaining` for a plain chain of calls, without building a graph.

    There is one span of each call, in order of arrival. None if the calls' parent ids are not those
    expected in a chain.
    """
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


# How a path begins: with any call of a stage, written as the stage's caller and index; or with any
# join that follows a call, written as that call.
_Begin = tuple[str | None, int] | str


_NOTHING = Remaining(0, 0, 0, censored=False)


def _longer(one: Remaining, other: Remaining) -> Remaining:
    return max(one, other)._replace(censored=one.censored or other.censored)


class _Step(NamedTuple):
    node: Node
    begins: list[_Begin]
    followed_by: list[_Begin]
    gap_us: int  # before it


class _Child(NamedTuple):
    call: str
    stage: _Begin
    then: list[_Begin]  # what follows its branch
    ready_at: int  # end of the stage before


def _in_order(graph: CallGraph) -> Iterator[_Step]:
    """Yield all calls, each after the calls that precede it."""
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
    """Return the children of a call, last stage first."""
    stages = graph.stages(caller)
    found: list[_Child] = []
    for index, stage in enumerate(stages):
        following: list[_Begin] = [(caller, index + 1)] if index + 1 < len(stages) else then
        found += [_Child(call, (caller, index), following, ready_at) for call in stage]
        ready_at = max(graph.nodes[call].branch_finished_at for call in stage)
    return found[::-1]
