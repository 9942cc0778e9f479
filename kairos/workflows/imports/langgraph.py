"""LangGraph graphs as flows.

    from kairos.workflows.imports.langgraph import from_langgraph

    imported = from_langgraph(graph, "reports")   # what StateGraph.compile() gives
    flow = imported.flow

A row is the graph's input, and the columns that come out are the state that its `invoke` returns. A
node that is `{key: prompt | model | parser}`, or such a chain and a function that makes state of
its answer, becomes an LLM operator; every other node is a call of a function. Each reads what the
nodes of the steps before it have written, as in LangGraph, which is imported where it is used.

LangGraph runs in steps: a node runs in the step after one that leads to it, and again in the step
after another one that does, unless the edges were added as one (`add_edge([a, b], c)`). The state
is computed by LangGraph's own channels from the nodes' writes so far, so a state key with a reducer
is reduced as there. Values are JSON, since a flow stores them in its journal.
"""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from copy import deepcopy
from graphlib import CycleError, TopologicalSorter
from typing import Any, get_type_hints

import msgspec

from kairos.core import SetupError
from kairos.workflows.compile.invalid import InvalidFlow, OperatorFailed
from kairos.workflows.compile.operators import MOST_OPERATORS, RESERVED, Purity
from kairos.workflows.declare.declaring import Flow
from kairos.workflows.declare.operand import Operand
from kairos.workflows.imports.langchain import LiftedChain, NotLifted, lifted


class ImportedGraph(msgspec.Struct, frozen=True):
    """Graph as a flow. `opaque`: nodes that are function calls, with the reason for each."""

    flow: Flow
    opaque: Mapping[str, str]


def from_langgraph(
    graph: object,
    name: str = "graph",
    *,
    purity: Mapping[str, Purity] | None = None,
    version: str = "",
) -> ImportedGraph:
    """Return the flow of a compiled StateGraph.

    Args:
        graph: the result of `StateGraph.compile()`.
        name: of the flow.
        purity: of what nodes do apart from LLM operators, by node (`Functions`); by default
            `effect`.
        version: of the graph's functions and reducers; results of another version are recomputed.

    Raises:
        SetupError: LangGraph is not installed.
        InvalidFlow: a flow cannot express the graph; the message says why.
    """
    try:
        from langgraph.graph.state import CompiledStateGraph
    except ImportError as error:
        raise SetupError(
            "graphs of LangGraph need LangGraph: pip install langgraph langchain-openai"
        ) from error
    if not isinstance(graph, CompiledStateGraph):
        raise InvalidFlow(None, f"a graph is what compile() gives, not a {type(graph).__name__}")
    check_graph(graph)
    unknown = sorted(set(purity or ()) - set(graph.builder.nodes))
    if unknown:
        known = ", ".join(sorted(graph.builder.nodes))
        raise InvalidFlow(None, f"purity: there is no node '{unknown[0]}'; there are {known}")
    return _Import(graph.builder, name, purity or {}, version).imported()


class _Write(msgspec.Struct, frozen=True):
    """Write of a node.

    `key`: the state key; None: the operand's value is a dict of them. `is_text`: it is certainly a
    text.
    """

    operand: Operand
    key: str | None
    is_text: bool = False


class _Import:
    def __init__(self, builder: Any, name: str, purity: Mapping[str, Purity], version: str) -> None:
        self._builder, self._purity, self._version = builder, purity, version
        self._flow = Flow(name)
        self._names: set[str] = set()
        self._given = sorted(builder.schemas[builder.input_schema])
        self._state = GraphState(builder.channels, self._given)
        self._row = self._flow.input(self._free("row"))
        self._written: list[list[_Write]] = []  # by step
        self._opaque: dict[str, str] = {}
        self._texts, self._final = texts_function(self._state), final_function(self._state)

    def imported(self) -> ImportedGraph:
        for nodes in steps_of(self._builder):
            # A step reads only writes of earlier steps.
            self._written.append([each for node in nodes for each in self._node(node)])
        keys = sorted(self._builder.schemas[self._builder.output_schema])
        final = self._read("final", self._final, keys)
        for key in keys:
            self._flow.output(key, final[key])
        return ImportedGraph(self._flow, self._opaque)

    def _node(self, node: str) -> list[_Write]:
        spec = self._builder.nodes[node]
        try:
            chains = _chains(spec.runnable)
        except NotLifted as why:
            self._opaque[node] = str(why)
            keys = sorted(self._builder.schemas[spec.input_schema])
            function = node_function(node, spec.runnable, self._state, keys)
            return [_Write(self._call(node, function, self._purity.get(node)), None)]
        several = len(chains) > 1
        return [
            self._lifted(node, f"{node}_{key}" if several else node, key, chain)
            for key, chain in chains.items()
        ]

    def _lifted(self, node: str, name: str, key: str | None, chain: LiftedChain) -> _Write:
        answer = self._flow.llm(
            self._free(name),
            chain.messages,
            on_cut="keep",
            inputs=self._variables(node, name, chain.variables),
            **chain.sampling,
        )
        if chain.after is None:
            return _Write(answer, key, is_text=True)
        purity = "pure" if chain.parses else self._purity.get(node)
        function = after_function(node, chain.after, key=key)
        return _Write(self._call(f"{name}_after", function, purity, {"text": answer}), key)

    def _variables(self, node: str, name: str, variables: Any) -> dict[str, Operand]:
        schema = self._builder.nodes[node].input_schema
        hints, known = get_type_hints(schema), self._builder.schemas[schema]
        unknown = [each for each in variables if each not in known]
        if unknown:
            raise InvalidFlow(
                None, f"node '{node}': its state has no '{unknown[0]}' for its prompt"
            )
        found = {each: self._text_of(each, hints) for each in variables}
        bound = {each: operand for each, operand in found.items() if operand is not None}
        rest = sorted(set(variables) - set(bound))
        if rest:
            texts = self._read(f"{name}_texts", self._texts, rest)
            bound |= {each: texts[each] for each in rest}
        return bound

    def _text_of(self, key: str, hints: Mapping[str, object]) -> Operand | None:
        """Return the operator, or the column, that a state key equals, if its value is one text."""
        if hints.get(key) is not str or hasattr(self._builder.channels[key], "operator"):
            return None
        for step in reversed(self._written):
            writers = [each for each in step if each.key in (key, None)]
            if writers:
                return writers[0].operand if len(writers) == 1 and writers[0].is_text else None
        return self._row[key] if key in self._given else None

    def _read(self, name: str, function: Any, keys: list[str]) -> Operand:
        return self._call(name, function, "pure", {**self._history(), "keys": keys})

    def _history(self) -> dict[str, object]:
        return {
            "row": self._row,
            "writes": [each.operand for step in self._written for each in step],
            "steps": [[each.key for each in step] for step in self._written],
        }

    def _call(
        self,
        name: str,
        function: Any,
        purity: Purity | None,
        inputs: Mapping[str, object] | None = None,
    ) -> Operand:
        free = self._free(name)
        purity = purity or "effect"
        known = self._flow.functions.register(
            function, purity=purity, version=self._version, name=f"{self._flow.name}.{free}"
        )
        return self._flow.call(
            free, known, purity=purity, version=self._version, inputs=inputs or self._history()
        )

    def _free(self, name: str) -> str:
        """Return an unused name for an operator, similar to this one."""
        plain = re.sub(r"[^A-Za-z0-9_]", "_", name)[:50]
        plain = plain if plain[:1].isalpha() and plain not in RESERVED else f"node_{plain}"
        free, count = plain, 1
        while free in self._names:
            count += 1
            free = f"{plain}_{count}"
        self._names.add(free)
        return free


def _chains(runnable: Any) -> Mapping[str | None, LiftedChain]:
    """Return the chains by state key; None as the key: the chain itself makes a dict of them.

    Raises NotLifted.
    """
    from langchain_core.runnables import RunnableParallel

    if type(runnable) is RunnableParallel:
        return {key: lifted(each) for key, each in runnable.steps__.items()}
    chain = lifted(runnable)
    if chain.after is None:
        raise NotLifted("it gives a text, not state keys")
    return {None: chain}


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
    lead = "have no path map, so nobody knows where they lead"
    if ends is not None:
        lead = f"lead to one of {', '.join(sorted(ends.values()))}; edges of a flow always lead on"
    raise InvalidFlow(
        None,
        f"node '{node}': its conditional edges ('{name}') {lead}: choose within one node, or "
        "declare the choice with Flow.branch",
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


def _check_cycles(builder: Any) -> None:
    sorter: TopologicalSorter[str] = TopologicalSorter()
    together = ((start, end) for starts, end in builder.waiting_edges for start in starts)
    for start, end in sorted([*builder.edges, *together]):
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


# Consecutive writes of each step: the key that is written, or null for a dict of them.
Steps = Sequence[Sequence[str | None]]


class GraphState:
    """State. `channels`: LangGraph's, by state key, empty. `given`: keys that a row may have."""

    def __init__(self, channels: Mapping[str, Any], given: Collection[str]) -> None:
        self._channels, self._given = channels, given

    def values(
        self, row: Mapping[str, object], writes: Sequence[object], steps: Steps, keys: Sequence[str]
    ) -> dict[str, object]:
        """Return the values of these keys, without keys that have no value.

        Raises LangGraph's InvalidUpdateError: two nodes of one step have written a key without a
        reducer.
        """
        channels = {key: _fresh(channel) for key, channel in self._channels.items()}
        self._update(channels, [deepcopy({key: row[key] for key in self._given if key in row})])
        left = iter(deepcopy(list(writes)))
        for step in steps:
            written = [(key, next(left)) for key in step]
            self._update(channels, [_named(key, value) for key, value in written])
        return {key: channels[key].get() for key in keys if channels[key].is_available()}

    def _update(self, channels: Mapping[str, Any], written: Sequence[Mapping[str, object]]) -> None:
        """Apply the writes of a step; channels without writes are updated, too, as in LangGraph."""
        for key, channel in channels.items():
            channel.update([each[key] for each in written if key in each])


def _fresh(channel: Any) -> Any:
    """Return a copy of a channel for a row: a reducer may change its initial value in place."""
    fresh = channel.copy()
    if fresh.is_available():
        fresh.value = deepcopy(fresh.value)
    return fresh


def _named(key: str | None, value: object) -> Mapping[str, object]:
    if key is not None:
        return {key: value}
    assert isinstance(value, Mapping), "written() gives nothing else"
    return value


def written(node: str, result: object) -> dict[str, object]:
    """Return a node's result as JSON.

    Raises:
        OperatorFailed: it is not a dict of JSON values; it may be a Command.
    """
    if result is None:
        return {}
    if not isinstance(result, dict):
        raise OperatorFailed(
            f"node '{node}' returned a {type(result).__name__}; in a flow it returns a dict of "
            "state keys, or nothing"
        )
    return {str(key): _plain(node, value) for key, value in result.items()}


def _plain(node: str, value: object) -> object:
    """Return the value without subclasses, such as the texts of LangChain's messages."""
    match value:
        case None | bool() | int() | float():
            return value
        case str():
            return str(value)
        case list() | tuple():
            return [_plain(node, each) for each in value]
        case dict() if all(isinstance(key, str) for key in value):
            return {str(key): _plain(node, each) for key, each in value.items()}
    raise OperatorFailed(
        f"node '{node}' returned a {type(value).__name__}, and a flow keeps JSON: return its text"
    )


def node_function(
    node: str, runnable: Any, state: GraphState, keys: Sequence[str]
) -> Callable[..., object]:
    """Return a function that runs a node, given the row and the writes before it."""

    async def act_async(
        row: Mapping[str, object], writes: Sequence[object], steps: Steps
    ) -> dict[str, object]:
        return written(node, await runnable.ainvoke(state.values(row, writes, steps, keys)))

    def act(row: Mapping[str, object], writes: Sequence[object], steps: Steps) -> dict[str, object]:
        return written(node, runnable.invoke(state.values(row, writes, steps, keys)))

    is_async = getattr(runnable, "func", runnable) is None  # a coroutine function alone
    return act_async if is_async else act


def after_function(node: str, runnable: Any, *, key: str | None) -> Callable[..., object]:
    """Return a function that makes a node's writes of an answer: a dict of keys, or one key."""

    def after(text: str) -> object:
        result = runnable.invoke(text)
        return written(node, {key: result})[key] if key else written(node, result)

    return after


def texts_function(state: GraphState) -> Callable[..., object]:
    """Return a function that gives state keys as texts, as in a prompt of LangChain."""

    def texts(
        row: Mapping[str, object], writes: Sequence[object], steps: Steps, keys: Sequence[str]
    ) -> dict[str, str]:
        values = state.values(row, writes, steps, keys)
        return {key: format(values[key]) for key in keys if key in values}

    return texts


def final_function(state: GraphState) -> Callable[..., object]:
    """Return a function that gives the final state; null for keys without a value."""

    def final(
        row: Mapping[str, object], writes: Sequence[object], steps: Steps, keys: Sequence[str]
    ) -> dict[str, object]:
        return dict.fromkeys(keys) | state.values(row, writes, steps, keys)

    return final
