"""What is computed for every row, whatever its values: what outputs need, and what that needs.

Operators are evaluated on demand. What a branch or a filter chooses, and what only the body of a
loop or a map needs, may not be asked for at all; what decides about it is.
"""

from collections.abc import Iterable, Iterator, Sequence

from kairos.workflows.compile.operators import Argument, Branch, Filter, Operator
from kairos.workflows.compile.references import own_arguments, referred


def certain(operators: Sequence[Operator], wanted: Iterable[str]) -> frozenset[str]:
    """Those of one scope that are computed wherever all of `wanted` are, by what they need of each
    other's values. What comes `after` another does not count."""
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
    """Those that it needs whatever they are."""
    if isinstance(operator.params, Branch | Filter):
        yield from operator.inputs.values()
    else:
        yield from own_arguments(operator)
