"""References between operators: the ones that an operator needs, and renaming them."""

from collections.abc import Callable, Iterable, Iterator, Mapping

from msgspec.structs import replace

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


def named_in(arguments: Iterable[Argument]) -> Iterator[str]:
    """Yield the operators that arguments refer to, in the order of the references."""
    return (each.operator for argument in arguments for each in referred(argument))


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
    found = dict.fromkeys((*operator.after, *named_in(own_arguments(operator))))
    inner = {*placeholders(operator), *(each.name for each in operator.body)}
    within = [name for each in operator.body for name in needs(each)]
    within += named_in(inner_arguments(operator))
    found.update(dict.fromkeys(name for name in within if name not in inner))
    return tuple(found)


def renamed(operator: Operator, names: Names) -> Operator:
    """Return the operator with references replaced by `names`, also within its body."""
    if not any(name in names for name in needs(operator)):
        return operator
    params = operator.params
    if isinstance(params, Filter):
        params = replace(params, of=argument_renamed(params.of, names))
    elif isinstance(params, Branch):
        other = params.otherwise
        params = replace(
            params,
            cases=_arguments(params.cases, names),
            otherwise=None if other is None else argument_renamed(other, names),
        )
    elif isinstance(params, Group):
        params = replace(params, value=argument_renamed(params.value, names))
    elif isinstance(params, Loop):
        params = replace(params, start=argument_renamed(params.start, names))
    elif isinstance(params, MapOver):
        params = replace(params, over=argument_renamed(params.over, names))
    after = (reference_renamed(Reference(each), names).operator for each in operator.after)
    changed = replace(
        operator,
        params=params,
        inputs=_arguments(operator.inputs, names),
        after=tuple(dict.fromkeys(after)),
    )
    body = tuple(renamed(each, names) for each in operator.body)
    return with_body(changed, body, names) if body else changed


def with_body(
    operator: Operator, body: tuple[Operator, ...], names: Names | None = None
) -> Operator:
    """Return a loop or a map with another body.

    `names`: by which its own references into its body are renamed.
    """
    params = operator.params
    assert isinstance(params, Loop | MapOver)
    names = names or {}
    params = replace(params, body=body, result=reference_renamed(params.result, names))
    if isinstance(params, Loop):
        params = replace(params, until_inputs=_arguments(params.until_inputs, names))
    return replace(operator, params=params)


def with_changed(declaration: Declaration, change: Callable[[Operator], Params]) -> Declaration:
    """Return the flow with the parameters of each operator changed, from its bodies outwards."""

    def changed(operator: Operator) -> Operator:
        if operator.body:
            operator = with_body(operator, tuple(map(changed, operator.body)))
        return replace(operator, params=change(operator))

    return replace(declaration, operators=tuple(map(changed, declaration.operators)))


def with_replaced(
    declaration: Declaration, operators: tuple[Operator, ...], names: Names
) -> Declaration:
    """Return the flow with other operators, and outputs that refer to them by `names`."""
    outputs = tuple(
        replace(each, value=argument_renamed(each.value, names)) for each in declaration.outputs
    )
    return replace(declaration, operators=operators, outputs=outputs)


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
