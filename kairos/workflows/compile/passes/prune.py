"""Remove operators that no output needs."""

from collections.abc import Iterable, Sequence

import msgspec

from kairos.workflows.compile.graph import ancestors, outputs_need
from kairos.workflows.compile.operators import Declaration, Operator
from kairos.workflows.compile.references import inner_arguments, named_in, with_body


def prune(declaration: Declaration) -> Declaration:
    """Return the flow with the ancestors of outputs, and of bodies' results, only. Idempotent."""
    kept = _pruned(declaration.operators, outputs_need(declaration.outputs))
    return msgspec.structs.replace(declaration, operators=kept)


def _pruned(operators: Sequence[Operator], wanted: Iterable[str]) -> tuple[Operator, ...]:
    inner = []  # first: what only they need goes with them
    for each in operators:
        body = _pruned(each.body, named_in(inner_arguments(each)))
        inner.append(with_body(each, body) if body else each)
    kept = ancestors(inner, wanted)
    return tuple(each for each in inner if each.name in kept)
