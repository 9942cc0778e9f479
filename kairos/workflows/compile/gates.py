"""Gates of operators: choices that decide whether an operator is computed for a row.

Operators are evaluated on demand. So an operator that only a branch or a filter asks for begins
when that has chosen, and so does everything that only it needs (`gates`). Values needed only in the
body of a loop or a map may never be asked for, either; all other operators, and the conditions, are
computed for every row, regardless of its values (`certain`).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain

from kairos.workflows.compile.check import every_operator
from kairos.workflows.compile.graph import ancestors
from kairos.workflows.compile.operators import Branch, Declaration, Filter, Operator
from kairos.workflows.compile.references import named_in, needs, own_arguments


def gates(declaration: Declaration) -> Mapping[str, tuple[str, ...]]:
    """Return for each operator the operators whose values decide about it; none in bodies.

    Operators must be in an order of dependencies.
    """
    asked: dict[str, list[tuple[str, ...]]] = {}
    for name in named_in(output.value for output in declaration.outputs):
        asked.setdefault(name, []).append(())
    found: dict[str, tuple[str, ...]] = {}
    for operator in reversed(declaration.operators):
        ways = asked.get(operator.name, [()])
        found[operator.name] = tuple(dict.fromkeys(chain(*ways))) if all(ways) else ()
        chosen = _chosen(operator)
        deciding = tuple(named_in(operator.inputs.values()))
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
    return {*named_in(each for each in own_arguments(operator) if each not in inputs)}


def certain(operators: Sequence[Operator], wanted: Iterable[str]) -> frozenset[str]:
    """Return the operators of one scope that are computed whenever all of `wanted` are.

    Only needed values count, not `after`.
    """

    def always_needed(operator: Operator) -> Iterator[str]:
        is_choice = isinstance(operator.params, Branch | Filter)
        return named_in(operator.inputs.values() if is_choice else own_arguments(operator))

    return ancestors(operators, wanted, always_needed)
