"""Remove dependencies that are not needed (Teola's pass 1, dependency pruning).

An `after` that only repeats the order of modules is removed, so that independent operators begin
concurrently, such as indexing a document and expanding a question. It stays where it can change the
results:

- a function with an effect keeps its place among all that it is after, and all that is after it;
- an operator that outputs need only by an `after` is still computed, since it may fail its row;
- in a flow with a `group`, where the same operator may be computed once a row and once a group.
"""

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from kairos.workflows.compile.check import every_operator
from kairos.workflows.compile.gates import certain
from kairos.workflows.compile.graph import ancestors, outputs_need
from kairos.workflows.compile.operators import Declaration, Group, Loop, MapOver, Operator
from kairos.workflows.compile.references import needs, with_body


class Freed(msgspec.Struct, frozen=True):
    declaration: Declaration
    of: Mapping[str, tuple[str, ...]]  # by operator, the removed `after`


def data_dependencies(declaration: Declaration) -> Freed:
    """Remove unneeded dependencies of operators in an order of dependencies. Idempotent."""
    if any(isinstance(each.params, Group) for each in declaration.operators):
        return Freed(declaration, {})
    freed: dict[str, tuple[str, ...]] = {}
    scope = _Scope(freed, frozenset(), frozenset(), before_effect=False)
    operators = scope.of(declaration.operators, outputs_need(declaration.outputs))
    return Freed(msgspec.structs.replace(declaration, operators=operators), freed)


class _Scope:
    """Scope of operators.

    `around`: operators around it that every row needs. `behind`: operators after an effect around
    it; `before_effect`: an effect may follow all its operators.
    """

    def __init__(
        self,
        freed: dict[str, tuple[str, ...]],
        around: frozenset[str],
        behind: frozenset[str],
        *,
        before_effect: bool,
    ) -> None:
        self._freed, self._around = freed, around
        self._behind, self._before_effect = behind, before_effect

    def of(self, operators: Sequence[Operator], wanted: Iterable[str]) -> tuple[Operator, ...]:
        effects = [each.name for each in operators if _has_effect(each)]
        before = ancestors(operators, effects)
        if self._before_effect:
            before = frozenset(each.name for each in operators)
        behind, sure = set(self._behind), self._around | certain(operators, wanted)
        found = []
        for each in operators:
            if each.name in effects or not behind.isdisjoint(needs(each)):
                behind.add(each.name)
            inner = self._inner(each, sure, frozenset(behind), before_effect=each.name in before)
            loose = tuple(name for name in each.after if name in sure and name not in behind)
            if loose and each.name not in before:
                kept = tuple(name for name in each.after if name not in loose)
                inner = msgspec.structs.replace(inner, after=kept)
                self._freed[each.name] = loose
            found.append(inner)
        return tuple(found)

    def _inner(
        self,
        operator: Operator,
        sure: frozenset[str],
        behind: frozenset[str],
        *,
        before_effect: bool,
    ) -> Operator:
        params = operator.params
        if not isinstance(params, Loop | MapOver):
            return operator
        scope = _Scope(self._freed, sure, behind, before_effect=before_effect)
        return with_body(operator, scope.of(params.body, [params.result.operator]))


def _has_effect(operator: Operator) -> bool:
    return any(each.purity == "effect" for each in every_operator([operator]))
