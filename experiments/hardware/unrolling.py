"""Cycles unrolled, as often as they may be taken, and agents replaced by what is inside of them.

A loop is what lies between the ends of a feedback edge. Its k-th repetition is a copy of it that
runs as often as the edge is taken k times: `share` to the power of k. So the runs of all copies add
up to what the loop does in the mean, and the graph has no cycle. What follows the loop follows its
last copy. Copies that hardly ever run are left out (`LEAST_RUNS`), so that a long bound costs
nothing where the loop is seldom taken.
"""

from collections import Counter

import msgspec

from kairos.errors import SetupError
from kairos.planner.work_graph import (
    MAX_NODES,
    WorkEdge,
    WorkGraph,
    WorkKind,
    WorkNode,
    check,
    size,
)

LEAST_RUNS = 1e-6  # of a copy; less than a run in a million changes no plan


def unrolled(graph: WorkGraph) -> WorkGraph:
    """The same work without agents and without cycles.

    Names of what was inside of an agent begin with the agent's, and a slash; those of repetitions
    end in `#2`, `#3` and so on.

    Raises:
        SetupError: the graph makes no sense, or would have more than `MAX_NODES` nodes.
    """
    check(graph)
    flat = flattened(graph)
    while loops := [edge for edge in flat.edges if edge.times is not None]:
        # The smallest loop first: those inside of others are copied with them.
        bodies = {id(edge): _body(flat, edge) for edge in loops}
        smallest = min(loops, key=lambda edge: len(bodies[id(edge)]))
        flat = _without(flat, smallest, bodies[id(smallest)])
    return flat


def flattened(graph: WorkGraph) -> WorkGraph:
    """Agents replaced by their graphs: what led to an agent leads to what is first in it."""
    nodes: list[WorkNode] = []
    edges: list[WorkEdge] = []
    first: dict[str, list[str]] = {}
    last: dict[str, list[str]] = {}
    for node in graph.nodes:
        if node.kind is not WorkKind.AGENT or node.inside is None:
            nodes.append(node)
            first[node.name] = last[node.name] = [node.name]
            continue
        inside = _renamed(flattened(node.inside), node)
        nodes += inside.nodes
        edges += inside.edges
        onward = inside.onward()
        names = [each.name for each in inside.nodes]
        first[node.name] = [n for n in names if all(edge.target != n for edge in onward)]
        last[node.name] = [n for n in names if all(edge.source != n for edge in onward)]
    for edge in graph.edges:
        edges += [
            msgspec.structs.replace(edge, source=source, target=target)
            for source in last[edge.source]
            for target in first[edge.target]
        ]
    return WorkGraph(nodes=tuple(nodes), edges=tuple(edges))


def _renamed(graph: WorkGraph, agent: WorkNode) -> WorkGraph:
    """As it stands in the agent's place: its names, and how often it runs."""
    replace = msgspec.structs.replace
    nodes = tuple(
        replace(node, name=f"{agent.name}/{node.name}", runs=node.runs * agent.runs)
        for node in graph.nodes
    )
    edges = tuple(
        replace(edge, source=f"{agent.name}/{edge.source}", target=f"{agent.name}/{edge.target}")
        for edge in graph.edges
    )
    return WorkGraph(nodes=nodes, edges=edges)


def _body(graph: WorkGraph, loop: WorkEdge) -> set[str]:
    """What lies on the ways on from the loop's target to its source, both included."""
    onward = graph.onward()
    after = _reached({loop.target}, [(edge.source, edge.target) for edge in onward])
    before = _reached({loop.source}, [(edge.target, edge.source) for edge in onward])
    body = after & before
    if not body:
        raise SetupError(
            f"the edge {loop.source} -> {loop.target} has `times`, but nothing leads from "
            f"{loop.target} on to {loop.source}: take `times` away"
        )
    return body


def _reached(begin: set[str], steps: list[tuple[str, str]]) -> set[str]:
    after: dict[str, list[str]] = {}
    for source, target in steps:
        after.setdefault(source, []).append(target)
    found, look = set(begin), [*begin]
    while look:
        for each in after.get(look.pop(), ()):
            if each not in found:
                found.add(each)
                look.append(each)
    return found


def _without(graph: WorkGraph, loop: WorkEdge, body: set[str]) -> WorkGraph:
    """The graph with one loop unrolled; of the others, those within it in every copy."""
    assert loop.times is not None
    copies = [k for k in range(1, loop.times + 1) if loop.share**k >= LEAST_RUNS]
    if size(graph) + len(body) * len(copies) > MAX_NODES:
        raise SetupError(
            f"with the loop {loop.source} -> {loop.target} unrolled {loop.times} times the graph "
            f"has more than {MAX_NODES} nodes: allow fewer times"
        )
    rest = [edge for edge in graph.edges if edge is not loop]
    within = [edge for edge in rest if edge.source in body and edge.target in body]
    nodes, edges = [*graph.nodes], [*within]
    names = {name: name for name in body}  # in the copy before
    taken = Counter(_base(node.name) for node in graph.nodes)
    for k in copies:
        ended = names[loop.source]
        names = {node.name: _next(node.name, taken) for node in graph.nodes if node.name in body}
        nodes += [
            msgspec.structs.replace(node, name=names[node.name], runs=node.runs * loop.share**k)
            for node in graph.nodes
            if node.name in body
        ]
        edges += [
            msgspec.structs.replace(edge, source=names[edge.source], target=names[edge.target])
            for edge in within
        ]
        edges.append(
            msgspec.structs.replace(loop, source=ended, target=names[loop.target], times=None)
        )
    for edge in rest:
        if edge.source not in body:
            edges.append(edge)
        elif edge.target not in body:
            edges.append(msgspec.structs.replace(edge, source=names[edge.source]))
    return WorkGraph(nodes=tuple(nodes), edges=tuple(edges))


def _base(name: str) -> str:
    return name.partition("#")[0]


def _next(name: str, taken: Counter[str]) -> str:
    """A name for the next copy of a node; loops inside of loops share the numbers."""
    base = _base(name)
    taken[base] += 1
    return f"{base}#{taken[base]}"
