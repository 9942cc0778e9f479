"""Choose the values that may stay with the processor that made them.

Teola's dependent pre-scheduling (5.2): a value that one engine makes for another is sent there
without the scheduler. Deviation: the paper sends every output to the scheduler, too. Here a value
that stays is not sent there at all, since it is of no use to it.
"""

from collections.abc import Iterator

from kairos.workflows.compile.check import every_operator
from kairos.workflows.compile.graph import outputs_need
from kairos.workflows.compile.operators import (
    Aggregate,
    Argument,
    Declaration,
    Ingest,
    MapOver,
    Operator,
    Reference,
    Search,
)
from kairos.workflows.compile.references import inner_arguments, own_arguments, referred
from kairos.workflows.compile.retrieval import is_passing


def staying(declaration: Declaration) -> frozenset[str]:
    """Return the operators whose values only processors need.

    They are vectors and collections of a row that are ingested, searched for or searched, also by
    way of a map's items and an aggregate.
    """
    operators = list(every_operator(declaration.operators))
    able = {e.name for e in operators if is_passing(e.params) and e.on_error != "default"}
    left = able | {each.name for each in operators if isinstance(each.params, Aggregate | MapOver)}
    left.difference_update(outputs_need(declaration.outputs))
    while needed := left & {name for each in operators for name in _read_by(each, left)}:
        left -= needed
    return frozenset(left & able)


def _read_by(operator: Operator, left: set[str]) -> Iterator[str]:
    """Yield the operators whose value itself an operator needs.

    `left`: operators whose values may stay, or be passed on.
    """
    for argument, is_passed in _arguments(operator, left):
        for each in referred(argument):
            if each.path or not is_passed:
                yield each.operator


def _arguments(operator: Operator, left: set[str]) -> Iterator[tuple[Argument, bool]]:
    """Yield the arguments, and whether each may be an id in place of a value."""
    params, inputs = operator.params, operator.inputs
    passes_on = operator.name in left
    match params:
        case Ingest() | Search():
            for name, argument in inputs.items():
                is_one = isinstance(argument, Reference)
                yield argument, name == "collection" or (name == "vectors" and is_one)
        case Aggregate():
            yield inputs["parts"], passes_on
        case MapOver(over=over, result=result):
            yield over, False
            yield result, passes_on
            yield from ((argument, False) for argument in inputs.values())
        case _:
            for argument in (*own_arguments(operator), *inner_arguments(operator)):
                yield argument, False
