"""Checks of operators' templates and expressions."""

from collections.abc import Callable, Collection, Iterator

from kairos.workflows.compile.invalid import InvalidFlow, meant_by
from kairos.workflows.compile.operators import (
    Argued,
    Arguments,
    Branch,
    Filter,
    Format,
    Generation,
    Group,
    Loop,
    Operator,
)
from kairos.workflows.compile.templates import (
    BadTemplate,
    Expression,
    Template,
    Uses,
    expression,
    template,
)

Language = Callable[[str], Template | Expression]


def templates_of(operator: Operator) -> Iterator[tuple[str, str]]:
    """Yield the key and the source of each template."""
    params = operator.params
    if isinstance(params, Format):
        yield "template", params.template
    elif isinstance(params, Generation):
        for message in params.messages:
            yield ("prompt" if message.role == "user" else message.role), message.template


def expressions_of(operator: Operator) -> Iterator[tuple[str, str]]:
    """Yield the key and the source of each expression that is evaluated outside the body."""
    params = operator.params
    if isinstance(params, Filter):
        yield "where", params.where
    elif isinstance(params, Branch):
        yield "on", params.on
    elif isinstance(params, Group):
        yield "by", params.by


def sources_of(operator: Operator) -> Iterator[tuple[str, str, Language, Arguments]]:
    """Yield the key, source, language and bindings of each template and expression."""
    for key, source in templates_of(operator):
        yield key, source, template, operator.inputs
    for key, source in expressions_of(operator):
        yield key, source, expression, operator.inputs
    if isinstance(operator.params, Loop) and operator.params.until is not None:
        yield "until", operator.params.until, expression, operator.params.until_inputs


def uses_of(operator: str, key: str, source: str, language: Language) -> Uses:
    """Return the names that a source uses. Raises InvalidFlow: it is not in the language."""
    try:
        return language(source).uses
    except BadTemplate as error:
        raise InvalidFlow(operator, str(error), key=key, offset=error.line - 1) from error


def names_used(operator: Operator) -> set[str]:
    """Return the names used in templates and expressions.

    Raises InvalidFlow: one is not in the language.
    """
    uses = [uses_of(operator.name, *each, template) for each in templates_of(operator)]
    uses += [uses_of(operator.name, *each, expression) for each in expressions_of(operator)]
    return {use.name for found in uses for use in found}


def unknown_name(operator: Operator, name: str, known: Collection[str]) -> InvalidFlow:
    """Return the error for a name that nothing defines. `known`: the defined names."""
    written = (*templates_of(operator), *expressions_of(operator))
    key, source = next((key, source) for key, source in written if name in source)
    hint = meant_by(name, sorted(known))
    return InvalidFlow(
        operator.name,
        f"it needs '{name}', and there is no operator of this name; {hint}",
        key=key,
        offset=_line_of(name, source),
    )


def check_templates(operator: Operator) -> None:
    """Check an operator's templates and expressions.

    Raises:
        InvalidFlow: one is not in the language, a name in one is not bound, or a bound name is not
            used.
    """
    used: set[str] = set()
    for key, source, language, bound in sources_of(operator):
        names = {use.name for use in uses_of(operator.name, key, source, language)}
        if unbound := sorted(names - set(bound)):
            listed = ", ".join(sorted(bound)[:20]) or "nothing"
            raise InvalidFlow(
                operator.name,
                f"it needs '{unbound[0]}', which is not bound to anything; bound: {listed}",
                key=key,
                offset=_line_of(unbound[0], source),
            )
        if bound is operator.inputs:
            used |= names
    unused = [name for name in operator.inputs if name not in used]
    if unused and not isinstance(operator.params, Argued):
        raise InvalidFlow(operator.name, f"'{unused[0]}' is bound, and nothing in it uses it")


def _line_of(name: str, source: str) -> int:
    """Return the likely line of a name: the first line that has it between braces."""
    lines = source.splitlines()
    for marks in ("{", ""):
        for number, line in enumerate(lines):
            if name in line and marks in line:
                return number
    return 0
