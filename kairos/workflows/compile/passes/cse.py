"""Common subexpressions: equal operators are computed once for a row.

Hash-consing, in an order of dependencies: the structure of an operator is its definition with
representatives in place of its inputs and without its own name. So copies of whole chains collapse
from their beginning on. Only deterministic operators are merged: two sampled ones are two samples.
Equal calls across rows are merged when they are made, by their signatures
(`workflows/execute/flights.py`).
"""

from collections.abc import Mapping, Sequence

from kairos.workflows.compile.graph import in_order
from kairos.workflows.compile.operators import Declaration, Operator
from kairos.workflows.compile.passes.structure import deterministic, structure
from kairos.workflows.compile.references import renamed, with_body, with_replaced


def merge_equal(declaration: Declaration) -> tuple[Declaration, Mapping[str, str]]:
    """Merge equal operators; also return what replaces each removed one. Idempotent."""
    into: dict[str, str] = {}
    operators = _merged(declaration.operators, into)
    return with_replaced(declaration, operators, into), into


def _merged(operators: Sequence[Operator], into: dict[str, str]) -> tuple[Operator, ...]:
    kept: list[Operator] = []
    seen: dict[str, str] = {}
    for each in in_order(operators):
        operator = renamed(each, into)
        if operator.body:
            inner: dict[str, str] = {}
            operator = with_body(operator, _merged(operator.body, inner), inner)
            into.update(inner)
        if not deterministic(operator):
            kept.append(operator)
            continue
        first = seen.setdefault(structure(operator), operator.name)
        if first == operator.name:
            kept.append(operator)
        else:
            into[operator.name] = first
    return tuple(kept)
