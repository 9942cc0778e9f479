"""Columns of the table that a flow needs, known before its first row is read."""

from collections.abc import Iterator

import msgspec

from kairos.workflows.compile.check import every_operator
from kairos.workflows.compile.check_templates import sources_of
from kairos.workflows.compile.operators import Argued, Argument, Declaration, Input, Loop, Path
from kairos.workflows.compile.references import inner_arguments, own_arguments, referred


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
        for _, source, language, bindings in sources_of(each):
            for use in language(source).uses:
                for reference in referred(bindings[use.name]):
                    yield reference.operator, (*reference.path, *use.path), use.optional
        bound = each.inputs.values() if isinstance(each.params, Argued) else ()
        for argument in (*list(own_arguments(each))[len(each.inputs) :], *bound):
            yield from _whole(argument)
        for argument in inner_arguments(each):
            if not isinstance(each.params, Loop) or argument is each.params.result:
                yield from _whole(argument)
    for output in declaration.outputs:
        yield from _whole(output.value)


def _whole(argument: Argument) -> Iterator[tuple[str, Path, bool]]:
    for reference in referred(argument):
        yield reference.operator, reference.path, False
