"""Operands: values of operators, as arguments of other operators, before any is computed."""

from collections.abc import Mapping

import msgspec

from kairos.workflows.compile.check_templates import uses_of
from kairos.workflows.compile.invalid import InvalidFlow
from kairos.workflows.compile.operators import Argument, Constant, Reference, References
from kairos.workflows.compile.templates import expression
from kairos.workflows.compile.values import NotJson, plain


class Operand:
    """Future value of an operator. `doc["text"]` is a part of it."""

    __slots__ = ("flow", "reference")

    def __init__(self, flow: object, reference: Reference) -> None:
        self.flow = flow
        self.reference = reference

    def __getitem__(self, key: str | int) -> "Operand":
        if isinstance(key, bool) or not isinstance(key, str | int):
            raise InvalidFlow(self.reference.operator, f"a part has a name or a number, not {key}")
        reference = Reference(self.reference.operator, (*self.reference.path, key))
        return Operand(self.flow, reference)

    def __iter__(self) -> "Operand":
        raise InvalidFlow(
            self.reference.operator,
            "nothing has been computed yet, so there is nothing to go through; use Flow.map",
        )

    def __bool__(self) -> bool:
        raise InvalidFlow(
            self.reference.operator,
            "nothing has been computed yet, so it is neither true nor false; use Flow.branch or "
            "Flow.filter",
        )

    def __str__(self) -> str:
        raise InvalidFlow(
            self.reference.operator,
            "nothing has been computed yet, so it has no text; bind it: name=operand, and write "
            "{{ name }} in the template",
        )

    def __format__(self, spec: str) -> str:
        return str(self)


def argument(flow: object, operator: str, value: object) -> Argument:
    """Return the argument for a caller's value: an operand, a list of operands, or a constant.

    Raises:
        InvalidFlow: an operand is of another flow, or a list mixes operands and constants.
    """
    if isinstance(value, Operand):
        if value.flow is not flow:
            raise InvalidFlow(
                operator, f"'{value.reference.operator}' is an operator of another flow"
            )
        return value.reference
    if isinstance(value, list | tuple):
        operands = [each for each in value if isinstance(each, Operand)]
        if operands and len(operands) < len(value):
            raise InvalidFlow(
                operator,
                "a list is of operands or of constants; make a constant an operator with Flow.data",
            )
        if operands:
            references = [argument(flow, operator, each) for each in operands]
            return References(tuple(each for each in references if isinstance(each, Reference)))
    return Constant(constant(operator, value))


def used_by(
    flow: object, operator: str, until: str | None, known: Mapping[str, object]
) -> dict[str, Argument]:
    """Return the arguments that a loop's `until` uses, of the known ones.

    Raises:
        InvalidFlow: it is not a valid expression.
    """
    if until is None:
        return {}
    names = sorted({use.name for use in uses_of(operator, "until", until, expression)})
    return {name: argument(flow, operator, known[name]) for name in names if name in known}


def constant(operator: str, value: object) -> object:
    """Return a constant as JSON, copied, so that the program may change its own.

    Raises:
        InvalidFlow: it is not JSON.
    """
    try:
        return plain(value)
    except NotJson as error:
        raise InvalidFlow(operator, f"a constant is JSON: {error}") from error


def json_schema(operator: str, schema: object) -> Mapping[str, object] | None:
    """Return a JSON Schema: the given one, or that of a Pydantic model, a msgspec or data class.

    Raises:
        InvalidFlow: it is something else.
    """
    if schema is None:
        return None
    if isinstance(schema, Mapping):
        found = constant(operator, schema)
        assert isinstance(found, dict)
        return found
    try:
        made = getattr(schema, "model_json_schema", None)
        found = made() if callable(made) else msgspec.json.schema(schema)
    except TypeError as error:
        raise InvalidFlow(operator, f"it is not a schema: {error}", key="schema") from error
    name = str(found.get("$ref", "")).removeprefix("#/$defs/")
    within = found.get("$defs", {})
    # Engines want an object at the top, not a reference to one.
    return {**within[name], "$defs": within} if name in within else found
