"""Columns of the table that a flow needs, known before its first row is read."""

from collections.abc import Iterator

import msgspec

from kairos.workflows.compile.check import every_operator
from kairos.workflows.compile.check_templates import expressions_of, templates_of
from kairos.workflows.compile.operators import (
    Argued,
    Argument,
    Arguments,
    Declaration,
    Input,
    Loop,
    Operator,
    Path,
)
from kairos.workflows.compile.references import inner_arguments, own_arguments, referred
from kairos.workflows.compile.templates import NameUse, expression, template


class Columns(msgspec.Struct, frozen=True):
    """Columns of the table.

    `required`: columns that must exist, by name. `whole`: rows are used whole, so that any column
    may matter.
    """

    required: tuple[str, ...]
    whole: bool


def columns(declaration: Declaration) -> Columns:
    """Return the columns that a checked flow needs."""
    inputs = {each.name for each in declaration.operators if isinstance(each.params, Input)}
    found: set[str] = set()
    whole = False
    for each in declaration.operators:
        if isinstance(each.params, Input):
            found.update(each.params.columns)
    for name, path, optional in _needed(declaration):
        if name not in inputs:
            continue
        if path and not optional:
            found.add(str(path[0]))
        whole = whole or optional or not path
    return Columns(tuple(sorted(found)), whole)


def _needed(declaration: Declaration) -> Iterator[tuple[str, Path, bool]]:
    for each in every_operator(declaration.operators):
        yield from _by_templates(each)
        bound = each.inputs.values() if isinstance(each.params, Argued) else ()
        for argument in (*list(own_arguments(each))[len(each.inputs) :], *bound):
            yield from _whole(argument)
        for argument in inner_arguments(each):
            if not isinstance(each.params, Loop) or argument is each.params.result:
                yield from _whole(argument)
    for output in declaration.outputs:
        yield from _whole(output.value)


def _by_templates(operator: Operator) -> Iterator[tuple[str, Path, bool]]:
    for _, source in templates_of(operator):
        yield from _used(template(source).uses, operator.inputs)
    for _, source in expressions_of(operator):
        yield from _used(expression(source).uses, operator.inputs)
    params = operator.params
    if isinstance(params, Loop) and params.until is not None:
        yield from _used(expression(params.until).uses, params.until_inputs)


def _used(uses: frozenset[NameUse], bound: Arguments) -> Iterator[tuple[str, Path, bool]]:
    for use in uses:
        for reference in referred(bound[use.name]):
            yield reference.operator, (*reference.path, *use.path), use.optional


def _whole(argument: Argument) -> Iterator[tuple[str, Path, bool]]:
    for reference in referred(argument):
        yield reference.operator, reference.path, False
