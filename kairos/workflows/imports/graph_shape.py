"""Check that a flow can express a LangGraph graph, and find the steps of its nodes.

LangGraph runs in steps: a node runs in the step after one that leads to it, and again in the step
after another one that does, unless the edges were added as one (`add_edge([a, b], c)`).
"""

from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from typing import Any

from kairos.workflows.compile.invalid import InvalidFlow
from kairos.workflows.compile.operators import MOST_OPERATORS

_START, _END = "__start__", "__end__"
_INJECTED = frozenset({"runtime", "store", "writer", "previous", "error"})
_OF_NODES = ("retry_policy", "cache_policy", "timeout", "defer", "error_handler_node")


def check_graph(graph: Any) -> None:
    """Raise InvalidFlow if a flow cannot express the graph; the message names the node."""
    builder = graph.builder
    for what, there in (
        ("a checkpointer", graph.checkpointer),
        ("a store", graph.store),
        ("a cache", graph.cache),
        ("a context", builder.context_schema),
        ("interrupts", graph.interrupt_before_nodes or graph.interrupt_after_nodes),
    ):
        if there:
            raise InvalidFlow(None, f"the graph has {what}, a flow has not: compile it without")
    _check_state(builder)
    for node, branches in sorted(builder.branches.items()):
        for name, branch in branches.items():
            _refuse_choice(node, name, branch.ends)
    for name, spec in builder.nodes.items():
        _check_node(name, spec)
    _check_cycles(builder)


def _refuse_choice(node: str, name: str, ends: dict[str, str] | None) -> None:
    where = f"node '{node}': its conditional edges ('{name}')"
    if ends is None:
        raise InvalidFlow(
            None,
            f"{where} have no path map, so nobody knows where they lead: choose within one node, "
            "or declare the choice with Flow.branch",
        )
    raise InvalidFlow(
        None,
        f"{where} lead to one of {', '.join(sorted(ends.values()))}; edges of a flow always lead "
        "on: choose within one node, or declare the choice with Flow.branch",
    )


def _check_state(builder: Any) -> None:
    from langgraph.channels import BinaryOperatorAggregate, LastValue

    for schema in builder.schemas:
        if not (isinstance(schema, type) and issubclass(schema, dict)):
            raise InvalidFlow(
                None, f"the state must be a TypedDict, and {schema!r:.100} is not one"
            )
    if builder.managed:
        raise InvalidFlow(None, f"a flow has nothing like '{next(iter(builder.managed))}'")
    for key, channel in builder.channels.items():
        if type(channel) not in (LastValue, BinaryOperatorAggregate):
            kind = type(channel).__name__
            raise InvalidFlow(
                None, f"state key '{key}' is a {kind}: it may be a value, or have a reducer"
            )
        if getattr(getattr(channel, "operator", None), "__name__", "") in (
            "add_messages",
            "_add_messages",
        ):
            raise InvalidFlow(
                None, f"state key '{key}' holds messages, and a flow JSON: hand on their texts"
            )


def _check_node(name: str, spec: Any) -> None:
    if spec.ends:
        raise InvalidFlow(
            None,
            f"node '{name}' says itself where to go on (Command), to one of "
            f"{', '.join(sorted(spec.ends))}; edges of a flow always lead on: choose within one "
            "node, or declare the choice with Flow.branch",
        )
    for each in _OF_NODES:
        if getattr(spec, each, None):
            raise InvalidFlow(None, f"node '{name}' has '{each}', a flow has not: leave it out")
    asked = _INJECTED & set(getattr(spec.runnable, "func_accepts", ()))
    if asked:
        raise InvalidFlow(
            None, f"node '{name}' asks for LangGraph's '{min(asked)}', which a flow has not"
        )


def _edges(builder: Any) -> Iterator[tuple[str, str]]:
    yield from builder.edges
    for starts, end in builder.waiting_edges:
        yield from ((start, end) for start in starts)


def _check_cycles(builder: Any) -> None:
    sorter: TopologicalSorter[str] = TopologicalSorter()
    for start, end in sorted(_edges(builder)):
        sorter.add(end, start)
    try:
        sorter.prepare()
    except CycleError as error:
        told = " -> ".join(error.args[1])
        raise InvalidFlow(
            None,
            f"nodes lead in a circle: {told}; a flow repeats a bounded number of times: repeat "
            "within one node, or declare it with Flow.loop",
        ) from error


def steps_of(builder: Any) -> list[list[str]]:
    """Return the nodes of each step, in the order in which LangGraph applies their writes.

    The graph must have passed `check_graph`.
    """
    seen: dict[Any, set[str]] = {each: set() for each in builder.waiting_edges}
    steps, ran, count = [], {_START}, 0
    while ran:
        following = {end for start, end in builder.edges if start in ran}
        for (starts, end), arrived in seen.items():
            arrived.update(ran.intersection(starts))
            if arrived == set(starts):
                following.add(end)
                arrived.clear()
        ran = following - {_END}
        count += len(ran)
        if count > MOST_OPERATORS:
            raise InvalidFlow(None, f"its nodes run more than {MOST_OPERATORS} times")
        steps.append(sorted(ran))
    return steps[:-1]
