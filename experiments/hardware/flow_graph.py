"""A declared workflow as the planner's typed graph of work, for one row."""

from collections.abc import Iterator, Mapping, Sequence

from kairos.errors import SetupError
from kairos.plan.operators import (
    Data,
    Declaration,
    Generation,
    Input,
    Loop,
    MapOver,
    Operator,
    Reference,
    RegisteredCall,
)
from kairos.plan.prediction import FlowPrediction
from kairos.plan.references import needs
from kairos.planner.work_graph import (
    TokenCounts,
    Work,
    WorkEdge,
    WorkGraph,
    WorkKind,
    WorkNode,
    check,
)

ROUND, UNTIL = "round", "until"  # in a loop's graph: where each round begins and ends
_GIVEN = (Input, Data)  # there is nothing to do for them


def work_graph(
    declaration: Declaration,
    lengths: Mapping[str, TokenCounts],
    *,
    functions: Mapping[str, Work] | None = None,
    items: float = 1.0,
    again: float = 1.0,
) -> WorkGraph:
    """LLM calls, tools (registered functions) and steps on a CPU, with what each needs.

    A loop is an agent whose last step leads back to its first, at most as often as it may; a map is
    an agent that runs once for each item. Both are opened by `unrolling.unrolled`.

    Args:
        lengths: of LLM calls, by operator: `predicted_lengths`, or what was learnt.
        functions: what registered functions take, by function; nothing where they are not named.
        items: of a map's list, in the mean.
        again: the share of a loop's rounds after which another follows.

    Raises:
        SetupError: an LLM call has no lengths.
    """
    lowering = _Lowering(lengths, functions or {}, items, again)
    graph = lowering.scope(declaration.operators)
    check(graph)
    return graph


def predicted_lengths(prediction: FlowPrediction) -> dict[str, TokenCounts]:
    """Of each operator that makes calls, in the mean; answers are as long as they may be."""
    return {
        name: TokenCounts(
            prompt=each.prompt_tokens / each.calls, answer=each.completion_tokens / each.calls
        )
        for name, each in prediction.by_operator.items()
        if each.calls
    }


class _Lowering:
    def __init__(
        self,
        lengths: Mapping[str, TokenCounts],
        functions: Mapping[str, Work],
        items: float,
        again: float,
    ) -> None:
        self._lengths, self._functions = lengths, functions
        self._items, self._again = items, again

    def scope(self, operators: Sequence[Operator]) -> WorkGraph:
        """Operators that know each other, and the edges between them."""
        worked = [each for each in operators if not isinstance(each.params, _GIVEN)]
        names = {each.name for each in worked}
        edges = (
            WorkEdge(source=needed, target=each.name)
            for each in worked
            for needed in needs(each)
            if needed in names
        )
        return WorkGraph(nodes=tuple(map(self._node, worked)), edges=tuple(edges))

    def _node(self, operator: Operator) -> WorkNode:
        params, name = operator.params, operator.name
        if isinstance(params, Generation):
            if name not in self._lengths:
                raise SetupError(f"the LLM call '{name}' has no lengths: give its tokens")
            return WorkNode(
                name=name, kind=WorkKind.LLM, tokens=self._lengths[name], model=params.model
            )
        if isinstance(params, RegisteredCall):
            work = self._functions.get(params.function, Work())
            return WorkNode(name=name, kind=WorkKind.TOOL, work=work)
        if isinstance(params, Loop):
            return WorkNode(name=name, kind=WorkKind.AGENT, inside=self._rounds(params))
        if isinstance(params, MapOver):
            inside = self.scope(params.body)
            return WorkNode(name=name, kind=WorkKind.AGENT, inside=inside, runs=self._items)
        return WorkNode(name=name, kind=WorkKind.COMPUTE)

    def _rounds(self, loop: Loop) -> WorkGraph:
        body = self.scope(loop.body)
        nodes = (
            WorkNode(name=ROUND, kind=WorkKind.COMPUTE),
            *body.nodes,
            WorkNode(name=UNTIL, kind=WorkKind.COMPUTE),
        )
        back: tuple[WorkEdge, ...] = ()
        if loop.max_rounds > 1:
            times = loop.max_rounds - 1
            back = (WorkEdge(source=UNTIL, target=ROUND, times=times, share=self._again),)
        return WorkGraph(nodes=nodes, edges=(*body.edges, *self._around(body, loop.result), *back))

    def _around(self, body: WorkGraph, result: Reference) -> Iterator[WorkEdge]:
        """From a round's begin to what is first in it, and from all that is last to its end."""
        ends = {edge.target for edge in body.edges}
        begins = {edge.source for edge in body.edges}
        for node in body.nodes:
            if node.name not in ends:
                yield WorkEdge(source=ROUND, target=node.name)
            if node.name not in begins or node.name == result.operator:
                yield WorkEdge(source=node.name, target=UNTIL)
