"""LangGraph graphs as flows.

    from kairos.workflows.imports.langgraph import from_langgraph

    imported = from_langgraph(graph, "reports")   # what StateGraph.compile() gives
    flow = imported.flow

A row is the graph's input, and the columns that come out are the state that its `invoke` returns. A
node that is `{key: prompt | model | parser}`, or such a chain and a function that makes state of
its answer, becomes an LLM operator; every other node is a call of a function. Each reads what the
nodes of the steps before it have written, as in LangGraph, which is imported where it is used.
"""

import re
from collections.abc import Mapping
from typing import Any, get_type_hints

import msgspec

from kairos.core import SetupError
from kairos.workflows.compile.invalid import InvalidFlow
from kairos.workflows.compile.operators import RESERVED, Purity
from kairos.workflows.declare import Flow, Operand
from kairos.workflows.imports.graph_shape import check_graph, steps_of
from kairos.workflows.imports.graph_state import (
    GraphState,
    after_function,
    final_function,
    node_function,
    texts_function,
)
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
        self._outputs()
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

    def _outputs(self) -> None:
        keys = sorted(self._builder.schemas[self._builder.output_schema])
        final = self._read("final", self._final, keys)
        for key in keys:
            self._flow.output(key, final[key])

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
