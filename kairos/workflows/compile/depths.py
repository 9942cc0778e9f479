"""Depths of a plan's operators in Teola's graph of primitives, the engines' work for one row.

The depth of a primitive is the number of primitives that follow it on the longest path to an output
(Teola's algorithm 2); waiting work of the greatest depth goes first. The graph itself is not made:
depths are found from the outputs backwards. A call of a model is a prefill and a decode, each of
which passes may have taken apart; a choice and the end of a list count as one; filling in and
cutting texts as none. Loops are unrolled; a map's body counts once, for all of its items.
"""

from collections.abc import Iterable, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter

from kairos.workflows.compile.gates import gates
from kairos.workflows.compile.operators import (
    Aggregate,
    Argument,
    Branch,
    Declaration,
    Filter,
    Generation,
    Group,
    Loop,
    MapOver,
    Operator,
    Processing,
    RegisteredCall,
    StagedMap,
)
from kairos.workflows.compile.passes.decoding import PartialDecode
from kairos.workflows.compile.passes.prefill import PartialPrefill
from kairos.workflows.compile.references import (
    inner_arguments,
    needs,
    own_arguments,
    placeholders,
    referred,
)

MOST_PRIMITIVES = 10_000  # beyond this, loops have one round

# The greatest depths of what follows a value, and of what follows it as soon as its last decode has
# begun; -1: nothing does.
_Followers = tuple[int, int]
_NONE: _Followers = (-1, -1)


def operator_depths(
    declaration: Declaration,
    partial: Iterable[PartialDecode],
    prefills: Iterable[PartialPrefill],
) -> dict[str, int]:
    """Return the greatest depth of each operator's primitives, for operators that have any."""
    found = _Depths(declaration, partial, prefills)
    found.scope(_decided_first(declaration.operators, found.gates))
    return found.depths


def _decided_first(
    operators: Sequence[Operator], gates: Mapping[str, tuple[str, ...]]
) -> Sequence[Operator]:
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


class _Depths:
    def __init__(
        self,
        declaration: Declaration,
        partial: Iterable[PartialDecode],
        prefills: Iterable[PartialPrefill],
    ) -> None:
        self.depths: dict[str, int] = {}
        self.gates = gates(declaration)
        self._partial = {each.operator for each in partial}
        self._prefills = {each.operator: each for each in prefills}
        self._unrolled = _count(declaration.operators) <= MOST_PRIMITIVES
        self._followers: dict[str, _Followers] = {}  # by operator

    def scope(self, operators: Sequence[Operator]) -> _Followers:
        """Go through a scope backwards; return what follows the values that all of it waits for."""
        left, around = {each.name for each in operators}, _NONE
        for each in reversed(operators):
            left.discard(each.name)
            waits = self._operator(each, self._followers.pop(each.name, _NONE))
            decide = (name for name in self.gates.get(each.name, ()) if name in left)
            self._follow((*_named(own_arguments(each)), *each.after, *decide), waits)
            around = _most(around, waits)
        return around

    def _operator(self, operator: Operator, followers: _Followers) -> _Followers:
        """Count an operator's primitives; return what follows the values that it waits for."""
        match params := operator.params:
            case Loop():
                return self._loop(operator, params, followers)
            case MapOver():
                return self._map(operator, params, followers)
            case Filter() | Branch():
                depth = self._add(operator, max(followers))
                self._follow(_named(operator.inputs.values()), (depth, -1))
                return followers
            case Generation():
                return self._generation(operator, followers)
        if isinstance(params, RegisteredCall | Processing | Group | Aggregate):
            return self._add(operator, max(followers)), -1
        return followers

    def _generation(self, operator: Operator, followers: _Followers) -> _Followers:
        last = self._add(operator, followers[0])
        if operator.name in self._partial:
            last = self._add(operator, max(last, followers[1]))
            followers = _NONE
        depth = self._add(operator, max(last, followers[1]))
        part = self._prefills.get(operator.name)
        if part is not None:
            known = self._add(operator, depth), -1
            self._follow(_named(part.inputs.values()), known)
        return depth, -1

    def _loop(self, operator: Operator, params: Loop, followers: _Followers) -> _Followers:
        state, rounds = followers, params.max_rounds if self._unrolled else 1
        for number in reversed(range(rounds)):
            if params.until is not None and number + 1 < rounds:
                depth = self._add(operator, max(state))
                state = (depth, -1)
                self._follow(_named(params.until_inputs.values()), state)
            self._follow((params.result.operator,), state)
            state = self._body(operator)
        return state

    def _map(self, operator: Operator, params: MapOver, followers: _Followers) -> _Followers:
        """Count a map; a streamed list passes on its items before it ends."""
        results = _named(inner_arguments(operator))
        if isinstance(params, StagedMap) and params.batch is not None:
            self._follow(results, followers)
            return self._body(operator)
        depth = self._add(operator, max(followers))
        self._follow(results, (depth, -1))
        begins = self._body(operator)
        listed = _named([params.over])
        if len(listed) == 1 and listed[0] in self._partial:
            begins = (-1, max(begins))
        return _most((depth, -1), begins)

    def _body(self, operator: Operator) -> _Followers:
        """Go through a body; return what follows the values that it begins with."""
        around = self.scope(operator.body)
        own = (self._followers.pop(each, _NONE) for each in placeholders(operator))
        return _most(around, *own)

    def _follow(self, names: Iterable[str], followers: _Followers) -> None:
        for name in names:
            self._followers[name] = _most(self._followers.get(name, _NONE), followers)

    def _add(self, operator: Operator, follows: int) -> int:
        """Count a primitive that another one of this depth follows; -1: none does."""
        self.depths[operator.name] = max(follows + 1, self.depths.get(operator.name, 0))
        return follows + 1


def _named(arguments: Iterable[Argument]) -> list[str]:
    return [each.operator for argument in arguments for each in referred(argument)]


def _most(*followers: _Followers) -> _Followers:
    return max(each[0] for each in followers), max(each[1] for each in followers)


def _count(operators: Sequence[Operator], times: int = 1) -> int:
    total = 0
    for each in operators:
        rounds = each.params.max_rounds if isinstance(each.params, Loop) else 1
        total += 3 * times + _count(each.body, times * rounds)
    return total
