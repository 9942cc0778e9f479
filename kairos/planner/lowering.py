"""From the calls that an application's workflows made to its graph of work.

A node stands for the n-th call of an agent in its workflow, up to `VISITS`; calls beyond share the
last one's node, which then runs more than once. So the graph has no cycle, and its runs and tokens
are exactly the means of what was seen. An edge's share is that of the source's workflows in which
the target waited for it. Time before a call in which no model was busy becomes a tool's node, or,
before what a person asks, a human's.

Orders that contradict each other in different workflows cannot all be kept: an edge that leads
against the mean position of its nodes is left out.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from statistics import fmean

import msgspec

from kairos.planner.work_graph import TokenCounts, Work, WorkEdge, WorkGraph, WorkKind, WorkNode

VISITS = 8  # of an agent in a workflow that have a node of their own
BYTES_PER_TOKEN = 4.0  # of text between calls; English in today's tokenizers


class ObservedCall(msgspec.Struct, frozen=True, kw_only=True):
    """An LLM call of a workflow, as it was recorded."""

    agent: str
    prompt_tokens: int
    answer_tokens: int
    cached_tokens: int = 0
    gap_s: float = 0.0  # of tools or a person, between what it waited for and the call
    by_person: bool = False  # the gap is a person's
    after: tuple[int, ...] = ()  # positions in its workflow of the calls that it waited for


class _Seen:
    """What was seen of one node."""

    def __init__(self) -> None:
        self.calls: list[ObservedCall] = []
        self.positions: list[int] = []
        self.workflows = 0  # that it ran in
        self.follows: defaultdict[str, set[int]] = defaultdict(set)  # node -> workflows


def lowered(workflows: Iterable[Sequence[ObservedCall]], *, visits: int = VISITS) -> WorkGraph:
    """The graph of an application. `runs` count executions per workflow.

    Args:
        workflows: each its calls, in the order in which they were made.
        visits: of an agent in a workflow that have a node of their own; 1: a node for each agent.
    """
    seen: dict[str, _Seen] = {}
    count = 0
    for number, calls in enumerate(workflows):
        _add(seen, number, calls, visits)
        count += 1
    nodes: list[WorkNode] = []
    edges: list[WorkEdge] = []
    place = {name: (fmean(each.positions), name) for name, each in seen.items()}
    for name, each in sorted(seen.items(), key=lambda item: place[item[0]]):
        waits = _gap(name, each, count)
        nodes += [*waits, _node(name, each, count)]
        entry = waits[0].name if waits else name
        if waits:
            edges.append(WorkEdge(source=entry, target=name))
        for source, together in sorted(each.follows.items()):
            if place[source] < place[name]:
                share = len(together) / seen[source].workflows
                edges.append(
                    WorkEdge(
                        source=source,
                        target=entry,
                        share=share,
                        data_bytes=BYTES_PER_TOKEN * _answer(seen[source]),
                    )
                )
    return WorkGraph(nodes=tuple(nodes), edges=tuple(edges))


def _add(seen: dict[str, _Seen], number: int, calls: Sequence[ObservedCall], visits: int) -> None:
    made: defaultdict[str, int] = defaultdict(int)
    names: list[str] = []
    for position, call in enumerate(calls):
        made[call.agent] += 1
        name = _name(call.agent, min(made[call.agent], visits))
        each = seen.setdefault(name, _Seen())
        each.calls.append(call)
        each.positions.append(position)
        each.workflows += name not in names
        for before in call.after:
            if names[before] != name:
                each.follows[names[before]].add(number)
        names.append(name)


def _name(agent: str, visit: int) -> str:
    return agent if visit == 1 else f"{agent}#{visit}"


def _node(name: str, seen: _Seen, workflows: int) -> WorkNode:
    tokens = TokenCounts(
        prompt=fmean(call.prompt_tokens for call in seen.calls),
        answer=_answer(seen),
        cached=fmean(call.cached_tokens for call in seen.calls),
    )
    runs = len(seen.calls) / workflows
    return WorkNode(name=name, kind=WorkKind.LLM, tokens=tokens, runs=runs)


def _answer(seen: _Seen) -> float:
    return fmean(call.answer_tokens for call in seen.calls)


def _gap(name: str, seen: _Seen, workflows: int) -> list[WorkNode]:
    """What happened before its calls, where something did."""
    waits = [call for call in seen.calls if call.gap_s]
    if not waits:
        return []
    people = sum(call.by_person for call in waits) * 2 > len(waits)
    return [
        WorkNode(
            name=f"before {name}",
            kind=WorkKind.HUMAN if people else WorkKind.TOOL,
            work=Work(wait_s=fmean(call.gap_s for call in waits)),
            runs=len(waits) / workflows,
        )
    ]
