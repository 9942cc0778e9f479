"""Checks of a declared workflow before it is run."""

import re
from collections.abc import Iterable, Iterator, Sequence
from difflib import get_close_matches

from kairos.workflows.compile.check_params import check_params
from kairos.workflows.compile.check_templates import check_templates
from kairos.workflows.compile.graph import ancestors, in_order, outputs_need, varies_by, varying
from kairos.workflows.compile.invalid import InvalidFlow
from kairos.workflows.compile.operators import (
    DEEPEST_BODY,
    MOST_OPERATORS,
    NAME,
    RESERVED,
    Declaration,
    Group,
    Input,
    Loop,
    MapOver,
    Operator,
)
from kairos.workflows.compile.references import (
    inner_arguments,
    needs,
    own_arguments,
    placeholders,
    referred,
)


def check(declaration: Declaration) -> None:
    """Raise InvalidFlow if the workflow cannot be run; the message says what would be right."""
    operators = declaration.operators
    _check_names(operators)
    _check_scope(operators, frozenset(), depth=0)
    _check_outputs(declaration)
    in_order(operators)
    for each in every_operator(operators):
        in_order(each.body)
        check_params(each)
        check_templates(each)
    _check_groups(declaration)
    _check_effects(declaration)


def every_operator(operators: Iterable[Operator]) -> Iterator[Operator]:
    """Yield all operators, also in bodies."""
    for each in operators:
        yield each
        yield from every_operator(each.body)


def _check_names(operators: Sequence[Operator]) -> None:
    seen: set[str] = set()
    for each in every_operator(operators):
        name = each.name
        if not re.match(NAME, name):
            raise InvalidFlow(
                name[:100],
                "a name begins with a letter and has letters, digits and _ alone, 64 at most",
            )
        if name in RESERVED:
            raise InvalidFlow(name, f"this name has a meaning of its own in templates: {name}")
        if name in seen:
            raise InvalidFlow(name, "there are two operators of this name, which must differ")
        seen.add(name)
        if len(seen) > MOST_OPERATORS:
            raise InvalidFlow(None, f"a flow has {MOST_OPERATORS} operators at most")


def _check_scope(operators: Sequence[Operator], around: frozenset[str], *, depth: int) -> None:
    """Check the references of a scope. `around`: names visible from enclosing scopes."""
    seen = around | {each.name for each in operators}
    for each in operators:
        if depth and isinstance(each.params, Input | Group):
            raise InvalidFlow(each.name, f"an operator of kind {each.kind} cannot be in a body")
        for name in (*each.after, *_named(own_arguments(each))):
            _check_known(each.name, name, seen)
        if not isinstance(each.params, Loop | MapOver):
            continue
        if depth == DEEPEST_BODY:
            raise InvalidFlow(each.name, f"bodies are nested more than {DEEPEST_BODY} deep")
        if not each.body:
            raise InvalidFlow(each.name, "its body has no operator", key="body")
        inner = seen | {*placeholders(each)}
        for name in _named(inner_arguments(each)):
            _check_known(each.name, name, inner | {body.name for body in each.body})
        _check_scope(each.body, inner, depth=depth + 1)


def _named(arguments: Iterable[object]) -> Iterator[str]:
    for argument in arguments:
        yield from (each.operator for each in referred(argument))  # type: ignore[arg-type]


def _check_known(operator: str | None, name: str, seen: frozenset[str]) -> None:
    if name not in seen:
        near = get_close_matches(name, sorted(seen), n=1)
        known = ", ".join(sorted(seen)[:20])
        hint = f"; did you mean '{near[0]}'?" if near else f"; there are {known}"
        raise InvalidFlow(operator, f"there is no operator '{name[:100]}' here{hint}")


def _check_outputs(declaration: Declaration) -> None:
    if not declaration.outputs:
        raise InvalidFlow(None, "the flow has no output: say what is to be written", key="outputs")
    seen = frozenset(each.name for each in declaration.operators)
    columns: set[str] = set()
    for output in declaration.outputs:
        if not output.column or len(output.column) > 256 or output.column in columns:
            raise InvalidFlow(
                None,
                f"output '{output.column[:100]}': a column has a name of its own, of 1 to 256 "
                "characters",
                key="outputs",
            )
        columns.add(output.column)
        for name in _named([output.value]):
            try:
                _check_known(None, name, seen)
            except InvalidFlow as error:
                text = str(error)
                raise InvalidFlow(None, text, key=f"outputs.{output.column}") from error


def _check_groups(declaration: Declaration) -> None:
    order = in_order(declaration.operators)
    groups = [each.name for each in order if isinstance(each.params, Group)]
    if len(groups) > 1:
        raise InvalidFlow(groups[1], f"a flow has one group, and there is '{groups[0]}' already")
    found = varying(order)
    for each in order:
        if not isinstance(each.params, Group) and found[each.name] == "both":
            by_row = [name for name in needs(each) if found.get(name) in ("row", "both")]
            raise InvalidFlow(
                each.name,
                f"it is computed once a group, and '{by_row[0]}' once a row: what it needs of that "
                f"must be in the value of '{groups[0]}'",
            )
    of = {column.column: varies_by([column.value], found) for column in declaration.outputs}
    rows = [column for column, by in of.items() if by == "row"]
    if rows and "group" in of.values():
        raise InvalidFlow(
            None,
            f"output '{rows[0]}' has a value for each row, others have one for each group: a flow "
            "gives one table",
            key="outputs",
        )


def _check_effects(declaration: Declaration) -> None:
    _effects_wanted(declaration.operators, outputs_need(declaration.outputs))


def _effects_wanted(operators: Sequence[Operator], named: Iterable[str]) -> None:
    wanted = ancestors(operators, named)
    for each in operators:
        if each.purity == "effect" and each.name not in wanted:
            raise InvalidFlow(
                each.name,
                "nothing that comes out needs it, so it would never run: make it an output, or "
                "name it in `after` of an operator that must follow it",
            )
        if each.body:
            _effects_wanted(each.body, _named(inner_arguments(each)))
