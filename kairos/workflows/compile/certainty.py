"""Operators that are computed for every row, regardless of its values.

Operators are evaluated on demand. Values chosen by a branch or a filter, and values needed only in
the body of a loop or a map, may never be asked for; the conditions always are.
"""

from collections.abc import Iterable, Iterator, Sequence

from kairos.workflows.compile.operators import Argument, Branch, Filter, Operator
from kairos.workflows.compile.references import own_arguments, referred


def certain(operators: Sequence[Operator], wanted: Iterable[str]) -> frozenset[str]:
    """Return the operators of one scope that are computed whenever all of `wanted` are.

    Only needed values count, not `after`.
    """
    by_name = {each.name: each for each in operators}
    found: set[str] = set()
    look = list(wanted)
    while look:
        name = look.pop()
        if name not in found and name in by_name:
            found.add(name)
            for argument in certain_arguments(by_name[name]):
                look.extend(each.operator for each in referred(argument))
    return frozenset(found)


def certain_arguments(operator: Operator) -> Iterator[Argument]:
    """Yield the arguments that an operator always needs."""
    if isinstance(operator.params, Branch | Filter):
        yield from operator.inputs.values()
    else:
        yield from own_arguments(operator)
