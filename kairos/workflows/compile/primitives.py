"""Plan as Teola's graph of primitives: the engines' work for one row.

p-graph and e-graph are one form here. The graph is derived from a plan, for display and analysis;
an executor follows the plan itself, in which an operator begins when its inputs are there, so both
agree. Loops are unrolled; a map's body occurs once, for all of its items; filling in and cutting
texts are not primitives. A FullPrefill follows its PartialPrefill, as in the paper, whose engines
need that.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from typing import Literal, NamedTuple

import msgspec

from kairos.workflows.compile.gates import gates
from kairos.workflows.compile.operators import (
    Aggregate,
    Argument,
    Branch,
    Declaration,
    Embedding,
    Filter,
    Generation,
    Group,
    Ingest,
    Loop,
    MapOver,
    Operator,
    RegisteredCall,
    Rerank,
    Search,
    StagedMap,
)
from kairos.workflows.compile.passes.decoding import PartialDecode
from kairos.workflows.compile.passes.prefill import PartialPrefill
from kairos.workflows.compile.references import (
    inner_arguments,
    named_in,
    needs,
    own_arguments,
    placeholders,
)

Kind = Literal[
    "Prefill", "PartialPrefill", "FullPrefill", "Decode", "PartialDecode", "Embed", "Ingest",
    "Search", "Rerank", "Call", "Condition", "Aggregate", "CacheFetch",
]  # fmt: skip
Names = tuple[str, ...]


class Primitive(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Unit of work of an engine.

    `name`: the node (`workflows/execute/facts.py`) and the kind. `inputs`: names of primitives.
    `batch`: texts or items at once. `depth`: position on the longest path to an output (a
    CacheFetch does not count).
    """

    name: str
    op: str
    kind: Kind
    inputs: Names
    batch: int = 1
    depth: int = 0


def greatest_depths(made: Iterable[Primitive]) -> dict[str, int]:
    """Return the greatest depth of each operator's primitives."""
    found: dict[str, int] = {}
    for each in made:
        found[each.op] = max(found.get(each.op, 0), each.depth)
    return found


def primitive_lines(made: Iterable[Primitive]) -> Iterator[str]:
    """Yield a line for each primitive, for a terminal: depth, name, and inputs."""
    for each in made:
        said = f"{each.depth} {each.name}"
        if each.batch > 1:
            said += f" of {each.batch}"
        if each.inputs:
            said += f" after {', '.join(each.inputs)}"
        yield said


def _with_depths(made: Sequence[Primitive]) -> tuple[Primitive, ...]:
    """Return the primitives with their depths, from the end on, as in Teola's algorithm 2."""
    depths = dict.fromkeys((each.name for each in made), 0)
    steps = {each.name: each.kind != "CacheFetch" for each in made}
    for each in reversed(made):
        for name in each.inputs:
            depths[name] = max(depths[name], depths[each.name] + steps[name])
    return tuple(msgspec.structs.replace(each, depth=depths[each.name]) for each in made)


MOST_PRIMITIVES = 10_000  # beyond this, loops have one round

_OF: Mapping[type, Kind] = {
    RegisteredCall: "Call",
    Embedding: "Embed",
    Ingest: "Ingest",
    Search: "Search",
    Rerank: "Rerank",
    Group: "Aggregate",
    Aggregate: "Aggregate",
}


class Divided(NamedTuple):
    """Results of passes: operators that are fetched, streamed, or prefilled."""

    fetches: tuple[str, ...]
    partial: tuple[PartialDecode, ...]
    prefills: tuple[PartialPrefill, ...]


def primitives(
    declaration: Declaration, divided: Divided, items: Mapping[str, int] = {}
) -> tuple[Primitive, ...]:
    """Return the primitives of a flow, each after its inputs.

    `items`: known lengths of operators' lists.
    """
    made = _Making(declaration, divided, items)
    made.scope(_decided_first(declaration.operators, made.gates), {}, "", ())
    return _with_depths(made.found)


def _decided_first(operators: Sequence[Operator], gates: Mapping[str, Names]) -> Sequence[Operator]:
    """Return the operators in an order in which each follows its gates, unless a gate needs it."""
    if not any(gates[each.name] for each in operators):
        return operators
    by_name = {each.name: each for each in operators}
    needed = {each.name: [name for name in needs(each) if name in by_name] for each in operators}
    follows: dict[str, frozenset[str]] = {}  # all that it needs, directly or not
    for each in operators:
        follows[each.name] = frozenset(needed[each.name]).union(
            *(follows[name] for name in needed[each.name])
        )
    before: dict[str, list[str]] = {}
    for name in by_name:
        decide = [gate for gate in gates[name] if gate != name and name not in follows[gate]]
        before[name] = [*needed[name], *decide]
    try:
        return [by_name[name] for name in TopologicalSorter(before).static_order()]
    except CycleError:
        return operators


class _Making:
    """Builder of a graph. `tails` of an operator: the primitives after which its value is there."""

    def __init__(
        self, declaration: Declaration, divided: Divided, items: Mapping[str, int]
    ) -> None:
        self.found: list[Primitive] = []
        self._items = dict(items)
        self._unrolled = _count(declaration.operators) <= MOST_PRIMITIVES
        self._times = 1  # of the current body
        self._fetched = divided.fetches
        self._partial = {each.operator for each in divided.partial}
        self._prefills = {each.operator: each for each in divided.prefills}
        self.gates = gates(declaration)

    def scope(
        self, operators: Sequence[Operator], tails: dict[str, Names], path: str, around: Names
    ) -> None:
        """Add the operators of a scope. `around`: primitives that all of them follow."""
        for each in operators:
            waits = self._tails(own_arguments(each), tails)
            gates = (name for name in self.gates.get(each.name, ()) if name in tails)
            after = (tails[name] for name in (*each.after, *gates))
            waits = _joined(around, waits, *after)
            node = path + each.name
            tails[each.name] = self._operator(each, node, waits, tails)

    def _tails(self, arguments: Iterable[Argument], tails: Mapping[str, Names]) -> Names:
        return _joined(*(tails[name] for name in named_in(arguments)))

    def _operator(
        self, operator: Operator, node: str, waits: Names, tails: dict[str, Names]
    ) -> Names:
        params = operator.params
        match params:
            case Loop():
                return self._loop(operator, params, node, waits, tails)
            case MapOver():
                return self._map(operator, params, node, waits, tails)
            case Filter() | Branch():
                decides = self._tails(operator.inputs.values(), tails)
                return _joined((self._add(operator, node, "Condition", decides),), waits)
        if operator.name in self._fetched:
            waits = (self._add(operator, node, "CacheFetch", waits),)
        if isinstance(params, Generation):
            return self._generation(operator, node, waits, tails)
        if type(params) not in _OF:
            return waits
        kind = _OF[type(params)]
        size = 1 if kind == "Aggregate" else self._size(operator.inputs.values())
        self._items.setdefault(operator.name, size if kind == "Embed" else 1)
        if isinstance(params, Search | Rerank):
            self._items[operator.name] = params.top_k
        return (self._add(operator, node, kind, waits, batch=size),)

    def _generation(
        self, operator: Operator, node: str, waits: Names, tails: Mapping[str, Names]
    ) -> Names:
        kind: Kind = "Prefill"
        if (part := self._prefills.get(operator.name)) is not None:
            known = self._tails(part.inputs.values(), tails)
            times, self._times = self._times, 1  # one for all items of a map
            first = self._add(operator, node, "PartialPrefill", known)
            self._times = times
            waits, kind = _joined((first,), waits), "FullPrefill"
        last = self._add(operator, node, kind, waits)
        if operator.name in self._partial:
            last = self._add(operator, node, "PartialDecode", (last,))
        return (self._add(operator, node, "Decode", (last,)),)

    def _loop(
        self, operator: Operator, params: Loop, node: str, waits: Names, tails: dict[str, Names]
    ) -> Names:
        state = waits
        rounds = params.max_rounds if self._unrolled else 1
        for number in range(rounds):
            inner = {**tails, **dict.fromkeys(placeholders(operator), state)}
            self.scope(params.body, inner, f"{node}.{number}.", state)
            state = inner[params.result.operator]
            if params.until is not None and number + 1 < rounds:
                decides = _joined(state, self._tails(params.until_inputs.values(), inner))
                state = (self._add(operator, f"{node}.{number}", "Condition", decides),)
        return state

    def _map(
        self, operator: Operator, params: MapOver, node: str, waits: Names, tails: dict[str, Names]
    ) -> Names:
        """Add a map; streamed lists pass on their items before they end."""
        listed = [*named_in([params.over])]
        begins = waits
        if len(listed) == 1 and listed[0] in self._partial:
            early = {each.name: each.inputs for each in self.found if each.kind == "Decode"}
            begins = _joined(*(early.get(name, (name,)) for name in waits))
        inner = {**tails, **dict.fromkeys(placeholders(operator), begins)}
        items, times = self._size([params.over]), self._times
        if isinstance(params, StagedMap) and params.batch is not None:
            parts = []
            for number, begin in enumerate(range(0, items, params.batch)):
                self._items[placeholders(operator)[0]] = min(params.batch, items - begin)
                for each in params.body:
                    self._items.pop(each.name, None)
                within = dict(inner)
                self.scope(params.body, within, f"{node}.{number}.", waits)
                parts.append(within[params.result.operator])
            return _joined(*parts)  # the operator that follows joins the parts
        self._items.setdefault(operator.name, items)
        self._times = times * items
        self.scope(params.body, inner, f"{node}.*.", begins)
        self._times = times
        results = self._tails(inner_arguments(operator), inner)
        return (self._add(operator, node, "Aggregate", _joined(waits, results)),)

    def _size(self, arguments: Iterable[Argument]) -> int:
        """Return the length of the longest list among the arguments."""
        sizes = (sum(self._items.get(name, 1) for name in named_in([each])) for each in arguments)
        return max((1, *sizes))

    def _add(
        self, operator: Operator, node: str, kind: Kind, inputs: Names, *, batch: int = 1
    ) -> str:
        name, size = f"{node}:{kind}", batch * self._times
        self.found.append(
            Primitive(name=name, op=operator.name, kind=kind, inputs=inputs, batch=size)
        )
        return name


def _joined(*names: Names) -> Names:
    return tuple(dict.fromkeys(name for each in names for name in each))


def _count(operators: Sequence[Operator], times: int = 1) -> int:
    total = 0
    for each in operators:
        rounds = each.params.max_rounds if isinstance(each.params, Loop) else 1
        total += 3 * times + _count(each.body, times * rounds)
    return total
