"""Remove operators that no output needs."""

from collections.abc import Iterable, Sequence

import msgspec

from kairos.workflows.compile.graph import ancestors, outputs_need
from kairos.workflows.compile.operators import Declaration, Loop, MapOver, Operator
from kairos.workflows.compile.references import inner_arguments, referred


def prune(declaration: Declaration) -> Declaration:
    """Return the flow with the ancestors of outputs, and of bodies' results, only. Idempotent."""
    kept = _pruned(declaration.operators, outputs_need(declaration.outputs))
    return msgspec.structs.replace(declaration, operators=kept)


def _pruned(operators: Sequence[Operator], wanted: Iterable[str]) -> tuple[Operator, ...]:
    inner = [_inner(each) for each in operators]  # first: what only they need goes with them
    kept = ancestors(inner, wanted)
    return tuple(each for each in inner if each.name in kept)


def _inner(operator: Operator) -> Operator:
    params = operator.params
    if not isinstance(params, Loop | MapOver):
        return operator
    wanted = [each.operator for arg in inner_arguments(operator) for each in referred(arg)]
    body = _pruned(params.body, wanted)
    return msgspec.structs.replace(operator, params=msgspec.structs.replace(params, body=body))
