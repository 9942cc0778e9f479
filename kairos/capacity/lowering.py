"""Lower the calls of an application's workflows to its typed graph of work, and route its nodes.

After Asgar, Nguyen and Katti (Efficient and Scalable Agentic AI with Heterogeneous Systems, 2025),
sections 2.4 and 4.2. A call is taken apart into the prompt's computing (`prefill`) and the answer's
generation (`decode`); between them goes the KV cache. Loops are unrolled already, since each round
was recorded as calls of its own: an agent is one node pair, and `runs` counts its executions. So
runs and tokens are exactly the means of what was seen. Time before a call in which no model was
busy becomes a tool's node, or, before what a person asks, a human's.

An edge's share is that of the source's workflows in which the target waited for it. Orders that
contradict each other in different workflows cannot all be kept: an edge that leads against the mean
position of its nodes is left out.

A node is routed (section 3.2) by its kind: prompts to instances of both phases or of prefill,
answers to instances of both or of decode. Tools run on CPU workers; people are outside. How many
executions are under way at once follows from Little's law.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from statistics import fmean

import msgspec

from kairos.capacity.pool import InstanceKind, Pool
from kairos.capacity.serving import Phases
from kairos.core import BYTES_PER_TOKEN


class ObservedCall(msgspec.Struct, frozen=True, kw_only=True):
    """An LLM call of a workflow, as it was recorded."""

    agent: str
    prompt_tokens: int
    answer_tokens: int
    cached_tokens: int = 0
    gap_s: float = 0.0  # of tools or a person, between what it waited for and the call
    by_person: bool = False  # the gap is a person's
    after: tuple[int, ...] = ()  # positions in its workflow of the calls that it waited for


class WorkKind(StrEnum):
    """Kinds of work: they decide which hardware may do it."""

    PREFILL = "prefill"
    DECODE = "decode"
    TOOL = "tool"
    HUMAN = "human"


class WorkNode(msgspec.Struct, frozen=True, kw_only=True):
    """A step of the application; the figures are means of one execution."""

    name: str
    kind: WorkKind
    agent: str
    runs: float  # executions in a workflow
    tokens: float = 0.0  # computed (prefill), or generated (decode)
    wait_s: float = 0.0  # of tools and people


class WorkEdge(msgspec.Struct, frozen=True, kw_only=True):
    """Data that the target needs of the source."""

    source: str
    target: str
    data_bytes: float = 0.0  # text, or a KV cache
    share: float = 1.0  # of the source's workflows in which the target follows


class WorkGraph(msgspec.Struct, frozen=True, kw_only=True):
    nodes: tuple[WorkNode, ...]  # in the order of their mean positions
    edges: tuple[WorkEdge, ...]


class _Seen:
    """Observed calls of an agent."""

    def __init__(self) -> None:
        self.calls: list[ObservedCall] = []
        self.positions: list[int] = []
        self.workflows = 0  # that it called in
        self.follows: defaultdict[str, set[int]] = defaultdict(set)  # agent -> workflows


def lower_application(
    workflows: Iterable[Sequence[ObservedCall]], kv_bytes: Callable[[str], float]
) -> WorkGraph:
    """Return the graph of an application.

    `workflows`: each its calls, in the order in which they were made. `kv_bytes`: of a token in the
    cache, by agent.
    """
    seen: defaultdict[str, _Seen] = defaultdict(_Seen)
    for count, calls in enumerate(workflows, 1):
        _add(seen, count, calls)
    nodes: list[WorkNode] = []
    edges: list[WorkEdge] = []
    place = {agent: (fmean(each.positions), agent) for agent, each in seen.items()}
    for agent, each in sorted(seen.items(), key=lambda item: place[item[0]]):
        waits = _gap(agent, each, count)
        prefill, decode = _phases(agent, each, count)
        nodes += [*waits, prefill, decode]
        cache = kv_bytes(agent) * fmean(call.prompt_tokens for call in each.calls)
        edges += [WorkEdge(source=node.name, target=prefill.name) for node in waits]
        edges.append(WorkEdge(source=prefill.name, target=decode.name, data_bytes=cache))
        for source, together in sorted(each.follows.items()):
            if place[source] < place[agent]:
                edges.append(
                    WorkEdge(
                        source=f"{source}.{WorkKind.DECODE}",
                        target=(waits[0] if waits else prefill).name,
                        share=len(together) / seen[source].workflows,
                        data_bytes=BYTES_PER_TOKEN * _answer(seen[source]),
                    )
                )
    return WorkGraph(nodes=tuple(nodes), edges=tuple(edges))


def _add(seen: defaultdict[str, _Seen], number: int, calls: Sequence[ObservedCall]) -> None:
    for position, call in enumerate(calls):
        each = seen[call.agent]
        each.calls.append(call)
        each.positions.append(position)
        for before in call.after:
            if calls[before].agent != call.agent:
                each.follows[calls[before].agent].add(number)
    for agent in {call.agent for call in calls}:
        seen[agent].workflows += 1


def _phases(agent: str, seen: _Seen, workflows: int) -> tuple[WorkNode, WorkNode]:
    runs = len(seen.calls) / workflows
    new = fmean(call.prompt_tokens - call.cached_tokens for call in seen.calls)

    def node(kind: WorkKind, tokens: float) -> WorkNode:
        return WorkNode(name=f"{agent}.{kind}", kind=kind, agent=agent, runs=runs, tokens=tokens)

    return node(WorkKind.PREFILL, new), node(WorkKind.DECODE, _answer(seen))


def _answer(seen: _Seen) -> float:
    return fmean(call.answer_tokens for call in seen.calls)


def _gap(agent: str, seen: _Seen, workflows: int) -> list[WorkNode]:
    """Return the node of the time before an agent's calls; empty without such time."""
    waits = [call for call in seen.calls if call.gap_s]
    if not waits:
        return []
    people = sum(call.by_person for call in waits) * 2 > len(waits)
    return [
        WorkNode(
            name=f"before {agent}",
            kind=WorkKind.HUMAN if people else WorkKind.TOOL,
            agent=agent,
            runs=len(waits) / workflows,
            wait_s=fmean(call.gap_s for call in waits),
        )
    ]


CPU_WORKERS, OUTSIDE = "cpu workers", "outside"
_SERVE = {
    WorkKind.PREFILL: (Phases.BOTH, Phases.PREFILL),
    WorkKind.DECODE: (Phases.BOTH, Phases.DECODE),
}


class NodePlace(msgspec.Struct, frozen=True, kw_only=True):
    """A node's place."""

    node: WorkNode
    shares: Mapping[str, float]  # kind of instance, or `CPU_WORKERS` or `OUTSIDE` -> of executions
    at_once: float | None = None  # executions under way in the mean; None: the instances say


def node_places(
    graph: WorkGraph, pool: Pool, kinds: Sequence[InstanceKind], workflows_per_s: float
) -> tuple[NodePlace, ...]:
    return tuple(_place(node, pool, kinds, workflows_per_s) for node in graph.nodes)


def _place(
    node: WorkNode, pool: Pool, kinds: Sequence[InstanceKind], workflows_per_s: float
) -> NodePlace:
    if (phases := _SERVE.get(node.kind)) is not None:
        able = {kind.name for kind in kinds if kind.phases in phases}
        routes = pool.routes[node.agent]
        return NodePlace(
            node=node, shares={name: share for name, share in routes.items() if name in able}
        )
    where = OUTSIDE if node.kind is WorkKind.HUMAN else CPU_WORKERS
    at_once = workflows_per_s * node.runs * node.wait_s  # Little's law
    return NodePlace(node=node, shares={where: 1.0}, at_once=at_once)
