"""Definition of an operator, apart from its name and the way it is written."""

import msgspec

from kairos.workflows.compile.check_templates import templates_of
from kairos.workflows.compile.operators import (
    Arguments,
    Batched,
    Constant,
    Format,
    Generation,
    Input,
    Operator,
    Reference,
)
from kairos.workflows.compile.references import placeholders, renamed, with_body
from kairos.workflows.compile.signatures import of_structure
from kairos.workflows.compile.templates import Opaque, Slot, Static, template
from kairos.workflows.compile.values import Missing, as_text, part


def deterministic(operator: Operator) -> bool:
    """Return whether equal inputs give equal values, in its body too."""
    return operator.purity == "pure" and all(map(deterministic, operator.body))


def structure(operator: Operator) -> str:
    """Return a hash of an operator.

    Operators with the same hash have the same values for every row, and the same failures and
    handling of failures. Different hashes may still be equal operators (opaque templates).
    """
    how = [operator.on_error, operator.default, operator.retries, operator.after]
    return of_structure([operator.kind, how, _what(operator)])


def template_parts(source: str, inputs: Arguments) -> list[object]:
    """Return a template's parts: constants are part of its text, names are their bindings."""
    parts: list[object] = []
    for segment in template(source).segments:
        if isinstance(segment, Opaque):
            return [source, msgspec.to_builtins(inputs)]
        piece: object = segment.text if isinstance(segment, Static) else _slot(segment, inputs)
        if isinstance(piece, str) and parts and isinstance(parts[-1], str):
            parts[-1] += piece
        elif piece != "":
            parts.append(piece)
    return parts


def _what(operator: Operator) -> object:
    params = operator.params
    if isinstance(params, Input):
        return None  # the row, regardless of its required columns
    if isinstance(params, Format | Generation):
        written = msgspec.to_builtins(params)
        texts = [template_parts(source, operator.inputs) for _, source in templates_of(operator)]
        for key in ("template", "messages"):
            written.pop(key, None)
        roles = [each.role for each in params.messages] if isinstance(params, Generation) else []
        # Engines are asked for a schema's properties in its own order.
        schema = params.schema if isinstance(params, Generation) else None
        return [written, roles, texts, msgspec.json.encode(schema).decode()]
    if operator.body:
        operator = _body_numbered(operator)
    written = msgspec.to_builtins(operator.params)
    if isinstance(params, Batched):
        written.pop("batch", None)  # how many go together changes no value
    return [written, msgspec.to_builtins(operator.inputs)]


def _slot(slot: Slot, inputs: Arguments) -> object:
    argument = inputs[slot.name]
    if isinstance(argument, Constant):
        try:
            return as_text(part(argument.value, slot.path))
        except Missing:
            pass  # it fails for every row, with this message
    if isinstance(argument, Reference):
        return [argument.operator, [*argument.path, *slot.path]]
    return [msgspec.to_builtins(argument), list(slot.path)]


def _body_numbered(operator: Operator) -> Operator:
    """Return the operator with its body's names replaced by numbers: names make no difference."""
    here = {name: f"%{at}" for at, name in enumerate(placeholders(operator))}
    here |= {each.name: f"%body{at}" for at, each in enumerate(operator.body)}
    body = []
    for each in operator.body:
        inner = renamed(each, here)
        inner = _body_numbered(inner) if inner.body else inner
        body.append(msgspec.structs.replace(inner, name=here[each.name]))
    return msgspec.structs.replace(with_body(operator, tuple(body), here), name="%")
