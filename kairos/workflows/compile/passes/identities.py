"""Remove operators that return their input unchanged.

Operators that need one take its input instead. Identities are a format of one value and nothing
else, if that is a text, or is only put into other texts; a filter whose condition is a constant
that is true; a branch that always takes the same case; and a loop whose result is its own state.
One that waits for something else, or has a default for failures, stays.
"""

from collections.abc import Iterator, Mapping, Sequence

from kairos.workflows.compile.check import every_operator
from kairos.workflows.compile.check_templates import templates_of
from kairos.workflows.compile.graph import in_order
from kairos.workflows.compile.invalid import OperatorFailed
from kairos.workflows.compile.operators import (
    Argument,
    Branch,
    Declaration,
    Filter,
    Format,
    Generation,
    Loop,
    MapOver,
    Operator,
    Reference,
)
from kairos.workflows.compile.references import (
    inner_arguments,
    own_arguments,
    referred,
    renamed,
    with_body,
    with_replaced,
)
from kairos.workflows.compile.templates import Opaque, Slot, expression, template
from kairos.workflows.compile.values import as_text


def collapse(declaration: Declaration) -> tuple[Declaration, Mapping[str, Reference]]:
    """Return a flow without its identities, and by removed operator its input. Idempotent."""
    collapsing = _Collapsing(declaration)
    operators = collapsing.scope(declaration.operators)
    return with_replaced(declaration, operators, collapsing.into), collapsing.into


class _Collapsing:
    def __init__(self, declaration: Declaration) -> None:
        self.into: dict[str, Reference] = {}
        self._texts: set[str] = set()  # operators whose values are texts
        # Operators used other than as they stand in a text, and bodies' results.
        self._as_values = {each.operator for each in _values_used(declaration)}
        operators = every_operator(declaration.operators)
        bodies = [each.params for each in operators if isinstance(each.params, Loop | MapOver)]
        self._results = {each.result.operator for each in bodies}

    def scope(self, operators: Sequence[Operator]) -> tuple[Operator, ...]:
        kept = []
        here = {each.name for each in operators}
        for each in in_order(operators):
            operator = renamed(each, self.into)
            given = self._given(operator)
            if given is None or (operator.name in self._results and given.operator not in here):
                if operator.body:
                    operator = with_body(operator, self.scope(operator.body), self.into)
                kept.append(operator)
                if _gives_text(operator):
                    self._texts.add(operator.name)
            else:
                self.into[operator.name] = given
        return tuple(kept)

    def _given(self, operator: Operator) -> Reference | None:
        """Return the input that an operator returns unchanged; None if it is not an identity."""
        if operator.on_error != "fail" or operator.after:
            return None
        given = _unchanged(operator)
        if not isinstance(given, Reference) or operator.name not in self._as_values:
            return given if isinstance(given, Reference) else None
        is_text = not isinstance(operator.params, Format) or given.operator in self._texts
        return given if is_text and not given.path else None


def _unchanged(operator: Operator) -> Argument | None:
    """Return the argument that an operator returns as it is, or as its text."""
    params = operator.params
    if isinstance(params, Format):
        segments = template(params.template).segments
        slot = segments[0] if len(segments) == len(operator.inputs) == 1 else None
        if not isinstance(slot, Slot):
            return None
        given = operator.inputs[slot.name]
        if isinstance(given, Reference):
            return Reference(given.operator, (*given.path, *slot.path))
    elif operator.inputs:
        return None  # it is absent if one of these is
    elif isinstance(params, Filter):
        return params.of if _constant(params.where) else None
    elif isinstance(params, Branch):
        on = _constant(params.on)
        return None if on is None else params.cases.get(as_text(on), params.otherwise)
    elif isinstance(params, Loop):
        is_state = params.result == Reference(f"{operator.name}.state")
        return params.start if is_state and params.until is None else None
    return None


def _constant(source: str) -> object:
    """Return the value of an expression without names; else None."""
    compiled = expression(source)
    try:
        return None if compiled.uses else compiled.value({})
    except OperatorFailed:
        return None


def _gives_text(operator: Operator) -> bool:
    params = operator.params
    if isinstance(params, Generation) and params.schema is not None:
        return False
    is_text = operator.on_error != "default" or isinstance(operator.default, str)
    return is_text and isinstance(params, Format | Generation)


def _values_used(declaration: Declaration) -> Iterator[Reference]:
    """Yield references to values that are used other than as they stand in a text."""
    for output in declaration.outputs:
        yield from referred(output.value)
    for operator in every_operator(declaration.operators):
        in_text = (
            set(_in_text(operator)) if isinstance(operator.params, Format | Generation) else ()
        )
        for key, argument in operator.inputs.items():
            if key not in in_text or not isinstance(argument, Reference) or argument.path:
                yield from referred(argument)
        own = [each for each in own_arguments(operator) if each not in operator.inputs.values()]
        for argument in (*own, *inner_arguments(operator)):
            yield from referred(argument)


def _in_text(operator: Operator) -> Iterator[str]:
    """Yield names of inputs that templates insert whole, and nothing else."""
    segments = [s for _, source in templates_of(operator) for s in template(source).segments]
    opaque = {name for each in segments if isinstance(each, Opaque) for name in each.uses}
    parted = {each.name for each in segments if isinstance(each, Slot) and each.path}
    if operator.on_error == "fail":
        yield from (name for name in operator.inputs if name not in opaque and name not in parted)
