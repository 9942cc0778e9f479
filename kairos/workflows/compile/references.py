"""References between operators: the ones that an operator needs, and renaming them."""

from collections.abc import Callable, Iterator, Mapping

import msgspec

from kairos.workflows.compile.operators import (
    Argument,
    Arguments,
    Branch,
    Declaration,
    Filter,
    Group,
    Loop,
    MapOver,
    Operator,
    Params,
    Reference,
    References,
)

# By operator, its replacement, or a part of the replacement's value.
Names = Mapping[str, str] | Mapping[str, Reference]


def placeholders(operator: Operator) -> tuple[str, ...]:
    """Return the names, in its body, of the values that differ between rounds or items."""
    if isinstance(operator.params, Loop):
        return f"{operator.name}.state", f"{operator.name}.round"
    if isinstance(operator.params, MapOver):
        return f"{operator.name}.item", f"{operator.name}.index"
    return ()


def referred(argument: Argument) -> tuple[Reference, ...]:
    if isinstance(argument, Reference):
        return (argument,)
    return argument.each if isinstance(argument, References) else ()


def own_arguments(operator: Operator) -> Iterator[Argument]:
    """Yield the arguments outside its body."""
    yield from operator.inputs.values()
    params = operator.params
    if isinstance(params, Filter):
        yield params.of
    elif isinstance(params, Branch):
        yield from params.cases.values()
        if params.otherwise is not None:
            yield params.otherwise
    elif isinstance(params, Loop):
        yield params.start
    elif isinstance(params, MapOver):
        yield params.over
    elif isinstance(params, Group):
        yield params.value


def inner_arguments(operator: Operator) -> Iterator[Argument]:
    """Yield the arguments within its body that belong to the operator itself."""
    params = operator.params
    if isinstance(params, Loop | MapOver):
        yield params.result
    if isinstance(params, Loop):
        yield from params.until_inputs.values()


def needs(operator: Operator) -> tuple[str, ...]:
    """Return the operators of its own scope, or of one around it, that it may need.

    Each occurs once, in the order of the references.
    """
    found = dict.fromkeys(operator.after)
    for argument in own_arguments(operator):
        found.update(dict.fromkeys(each.operator for each in referred(argument)))
    inner = {*placeholders(operator), *(each.name for each in operator.body)}
    within = [name for each in operator.body for name in needs(each)]
    within += [each.operator for arg in inner_arguments(operator) for each in referred(arg)]
    found.update(dict.fromkeys(name for name in within if name not in inner))
    return tuple(found)


def renamed(operator: Operator, names: Names) -> Operator:
    """Return the operator with references replaced by `names`, also within its body."""
    if not any(name in names for name in needs(operator)):
        return operator
    params = operator.params
    if isinstance(params, Filter):
        params = msgspec.structs.replace(params, of=argument_renamed(params.of, names))
    elif isinstance(params, Branch):
        other = params.otherwise
        params = msgspec.structs.replace(
            params,
            cases=_arguments(params.cases, names),
            otherwise=None if other is None else argument_renamed(other, names),
        )
    elif isinstance(params, Group):
        params = msgspec.structs.replace(params, value=argument_renamed(params.value, names))
    elif isinstance(params, Loop | MapOver):
        params = _body_renamed(params, names)
    return msgspec.structs.replace(
        operator,
        params=params,
        inputs=_arguments(operator.inputs, names),
        after=tuple(
            dict.fromkeys(reference_renamed(Reference(e), names).operator for e in operator.after)
        ),
    )


def _body_renamed(params: Loop | MapOver, names: Names) -> Loop | MapOver:
    body = tuple(renamed(each, names) for each in params.body)
    params = results_renamed(params, names)
    if isinstance(params, MapOver):
        over = argument_renamed(params.over, names)
        return msgspec.structs.replace(params, over=over, body=body)
    start = argument_renamed(params.start, names)
    return msgspec.structs.replace(params, start=start, body=body)


def results_renamed(params: Loop | MapOver, names: Names) -> Loop | MapOver:
    """Return a loop or a map with its own references into its body renamed."""
    result = reference_renamed(params.result, names)
    if isinstance(params, MapOver):
        return msgspec.structs.replace(params, result=result)
    until = _arguments(params.until_inputs, names)
    return msgspec.structs.replace(params, result=result, until_inputs=until)


def with_changed(declaration: Declaration, change: Callable[[Operator], Params]) -> Declaration:
    """Return the flow with the parameters of each operator changed, from its bodies outwards."""
    operators = tuple(_changed(each, change) for each in declaration.operators)
    return msgspec.structs.replace(declaration, operators=operators)


def _changed(operator: Operator, change: Callable[[Operator], Params]) -> Operator:
    params = operator.params
    if isinstance(params, Loop | MapOver):
        body = tuple(_changed(each, change) for each in params.body)
        params = msgspec.structs.replace(params, body=body)
        operator = msgspec.structs.replace(operator, params=params)
    return msgspec.structs.replace(operator, params=change(operator))


def _arguments(arguments: Arguments, names: Names) -> dict[str, Argument]:
    return {key: argument_renamed(argument, names) for key, argument in arguments.items()}


def argument_renamed(argument: Argument, names: Names) -> Argument:
    if isinstance(argument, Reference):
        return reference_renamed(argument, names)
    if isinstance(argument, References):
        return References(tuple(reference_renamed(each, names) for each in argument.each))
    return argument


def reference_renamed(reference: Reference, names: Names) -> Reference:
    to = names.get(reference.operator, reference.operator)
    if isinstance(to, Reference):
        return Reference(to.operator, (*to.path, *reference.path))
    return Reference(to, reference.path)
