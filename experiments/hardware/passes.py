"""Passes over a graph: calls taken apart into what different hardware does, and steps joined.

After section 4.2 of Asgar, Nguyen and Katti (2025), where an LLM call becomes prefill and decode,
and a tool call a lookup and a computation. No pass changes how much work there is: a decomposed
call's parts add up to it, and a fused node does what its parts did. What fusing saves is the data
that went between them. All passes may be applied twice: the second time nothing changes.
"""

from collections import defaultdict
from collections.abc import Callable

import msgspec

from kairos.planner.work_graph import (
    CPU_KINDS,
    TokenCounts,
    Work,
    WorkEdge,
    WorkGraph,
    WorkKind,
    WorkNode,
    predecessors,
)

KvBytes = Callable[[str | None], float]  # of a model: bytes of KV cache a token


def decomposed(graph: WorkGraph, kv_bytes_per_token: KvBytes) -> WorkGraph:
    """LLM calls as `.prefill` and `.decode`, tools that wait and compute as `.lookup`, `.compute`.

    Between the phases goes the prompt's KV cache: cached tokens too, since decode reads them all.
    """
    parts = {node.name: _parts(node) for node in graph.nodes}
    edges = [
        msgspec.structs.replace(
            edge, source=parts[edge.source][-1].name, target=parts[edge.target][0].name
        )
        for edge in graph.edges
    ]
    for node in graph.nodes:
        first, last = parts[node.name][0], parts[node.name][-1]
        if first is not last:
            tokens = node.tokens.prompt if node.tokens else 0.0
            size = tokens * kv_bytes_per_token(node.model) if tokens else 0.0
            edges.append(WorkEdge(source=first.name, target=last.name, data_bytes=size))
    nodes = tuple(part for node in graph.nodes for part in parts[node.name])
    return WorkGraph(nodes=nodes, edges=tuple(edges))


def _parts(node: WorkNode) -> tuple[WorkNode, ...]:
    replace = msgspec.structs.replace
    if node.kind is WorkKind.LLM and node.tokens is not None:
        prompt = TokenCounts(prompt=node.tokens.prompt, cached=node.tokens.cached)
        answer = TokenCounts(
            prompt=node.tokens.prompt, cached=node.tokens.prompt, answer=node.tokens.answer
        )
        return (
            replace(node, name=f"{node.name}.prefill", kind=WorkKind.PREFILL, tokens=prompt),
            replace(
                node, name=f"{node.name}.decode", kind=WorkKind.DECODE, tokens=answer, work=Work()
            ),
        )
    if node.kind is WorkKind.TOOL and node.work.core_s and node.work.wait_s:
        computing = Work(flop=node.work.flop, core_s=node.work.core_s)
        waiting = replace(node.work, flop=0.0, core_s=0.0)
        return (
            replace(node, name=f"{node.name}.lookup", work=waiting),
            replace(node, name=f"{node.name}.compute", kind=WorkKind.COMPUTE, work=computing),
        )
    return (node,)


def fused(graph: WorkGraph) -> WorkGraph:
    """Steps on a CPU of which one only ever follows the other, as one: `first+second`.

    They must run equally often, and neither may have another neighbour on that side. The data that
    went between them need not be sent.
    """
    while (pair := _pair(graph)) is not None:
        graph = _joined(graph, *pair)
    return graph


def _pair(graph: WorkGraph) -> tuple[WorkNode, WorkNode] | None:
    nodes = {node.name: node for node in graph.nodes}
    before = predecessors(graph)
    after: dict[str, list[str]] = defaultdict(list)
    loops = {end for edge in graph.edges if edge.times for end in (edge.source, edge.target)}
    for edge in graph.onward():
        after[edge.source].append(edge.target)
    for target, edges in before.items():
        if len(edges) != 1 or edges[0].share != 1 or target in loops:
            continue
        first, second = nodes[edges[0].source], nodes[target]
        may = first.kind in CPU_KINDS and second.kind in CPU_KINDS and first.name not in loops
        if may and after[first.name] == [target] and first.runs == second.runs:
            return first, second
    return None


def _joined(graph: WorkGraph, first: WorkNode, second: WorkNode) -> WorkGraph:
    name = f"{first.name}+{second.name}"
    kind = first.kind if first.kind is second.kind else WorkKind.COMPUTE
    one = WorkNode(name=name, kind=kind, work=first.work.plus(second.work), runs=first.runs)
    now = {first.name: name, second.name: name}
    edges = (
        msgspec.structs.replace(
            edge,
            source=now.get(edge.source, edge.source),
            target=now.get(edge.target, edge.target),
        )
        for edge in graph.edges
    )
    return WorkGraph(
        nodes=tuple(one if node is first else node for node in graph.nodes if node is not second),
        edges=tuple(edge for edge in edges if edge.source != edge.target or edge.times),
    )
