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


def data_dependencies(
    declaration: Declaration,
) -> tuple[Declaration, Mapping[str, tuple[str, ...]]]:
    """Remove unneeded dependencies of operators in an order of dependencies. Idempotent.

    Also return, by operator, the removed `after`.
    """
    if any(isinstance(each.params, Group) for each in declaration.operators):
        return declaration, {}
    freed: dict[str, tuple[str, ...]] = {}
    operators = _loosened(declaration.operators, outputs_need(declaration.outputs), freed)
    return msgspec.structs.replace(declaration, operators=operators), freed


def _loosened(
    operators: Sequence[Operator],
    wanted: Iterable[str],
    freed: dict[str, tuple[str, ...]],
    around: frozenset[str] = frozenset(),
    behind: frozenset[str] = frozenset(),
    *,
    before_effect: bool = False,
) -> tuple[Operator, ...]:
    """Return the operators of a scope, and note in `freed` what each was freed from.

    `around`: operators around the scope that every row needs. `behind`: operators after an effect
    around it; `before_effect`: an effect may follow all its operators.
    """
    effects = [
        each.name
        for each in operators
        if any(one.purity == "effect" for one in every_operator([each]))
    ]
    before = ancestors(operators, effects)
    if before_effect:
        before = frozenset(each.name for each in operators)
    sure = around | certain(operators, wanted)
    found = []
    for each in operators:
        if each.name in effects or not behind.isdisjoint(needs(each)):
            behind |= {each.name}
        changed, is_before = each, each.name in before
        if isinstance(each.params, Loop | MapOver):
            result = [each.params.result.operator]
            body = _loosened(each.body, result, freed, sure, behind, before_effect=is_before)
            changed = with_body(each, body)
        loose = tuple(name for name in each.after if name in sure and name not in behind)
        if loose and not is_before:
            kept = tuple(name for name in each.after if name not in loose)
            changed = msgspec.structs.replace(changed, after=kept)
            freed[each.name] = loose
        found.append(changed)
    return tuple(found)
