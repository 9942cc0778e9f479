"""Gates of operators: choices that decide whether an operator is needed at all.

Operators are evaluated on demand. So one that only a branch or a filter asks for begins when that
has chosen, and so does everything that only it needs.
"""

from collections.abc import Mapping
from itertools import chain

from kairos.workflows.compile.check import every_operator
from kairos.workflows.compile.operators import Branch, Declaration, Filter, Operator
from kairos.workflows.compile.references import needs, own_arguments, referred


def gates(declaration: Declaration) -> Mapping[str, tuple[str, ...]]:
    """Return for each operator the operators whose values decide about it; none in bodies.

    Operators must be in an order of dependencies.
    """
    asked: dict[str, list[tuple[str, ...]]] = {}
    for output in declaration.outputs:
        for each in referred(output.value):
            asked.setdefault(each.operator, []).append(())
    found: dict[str, tuple[str, ...]] = {}
    for operator in reversed(declaration.operators):
        ways = asked.get(operator.name, [()])
        found[operator.name] = tuple(dict.fromkeys(chain(*ways))) if all(ways) else ()
        chosen = _chosen(operator)
        deciding = tuple(
            each.operator for arg in operator.inputs.values() for each in referred(arg)
        )
        for name in needs(operator):
            is_case = name in chosen and name not in deciding
            way = (*found[operator.name], *deciding) if is_case else found[operator.name]
            asked.setdefault(name, []).append(way)
        found |= {each.name: () for each in every_operator(operator.body)}
    return found


def _chosen(operator: Operator) -> set[str]:
    if not isinstance(operator.params, Branch | Filter):
        return set()
    inputs = list(operator.inputs.values())
    return {
        each.operator
        for argument in own_arguments(operator)
        if argument not in inputs
        for each in referred(argument)
    }
