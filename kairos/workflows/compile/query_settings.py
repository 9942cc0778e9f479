"""Settings of a single query: parameters of a flow's operators that a caller may choose.

The structure of a flow cannot be set: schemas, functions, collections and edges. Templates, and
values of `data` (by which a branch may choose how an answer is made), can be set if the flow lists
them as `settable`.
"""

from collections.abc import Mapping

import msgspec

from kairos.workflows.compile.check import every_operator
from kairos.workflows.compile.check_templates import names_used
from kairos.workflows.compile.invalid import InvalidFlow
from kairos.workflows.compile.operators import (
    Argument,
    Data,
    Declaration,
    Format,
    Generation,
    MessageTemplate,
    Operator,
    Params,
    Reference,
)
from kairos.workflows.compile.references import placeholders, with_body

MOST_SETTINGS = 64
# By kind, if the flow lists it.
LISTED: Mapping[str, tuple[str, ...]] = {
    "llm": ("prompt", "system"),
    "format": ("template",),
    "data": ("value",),
}
# By kind. A value beyond an operator's limits is refused, as in a flow.
SETTABLE: Mapping[str, tuple[str, ...]] = {
    "llm": ("model", "max_tokens", "temperature", "top_p", "seed", "stop"),
    "loop": ("max_rounds",),
    "map": ("max_items",),
    "chunk": ("size", "overlap"),
    "embed": ("model", "batch"),
    "ingest": ("batch",),
    "search": ("top_k",),
    "rerank": ("model", "top_k", "batch"),
}


def with_settings(declaration: Declaration, settings: Mapping[str, object]) -> Declaration:
    """Return the flow with settings by `OPERATOR.PARAMETER`, in bodies too. Check it again.

    Raises:
        InvalidFlow: the operator or the parameter does not exist, or the value is not allowed.
    """
    if not settings:
        return declaration
    if len(settings) > MOST_SETTINGS:
        raise InvalidFlow(None, f"{len(settings)} settings, {MOST_SETTINGS} at most")
    kinds = {each.name: each.kind for each in every_operator(declaration.operators)}
    chosen: dict[str, dict[str, object]] = {}
    for name, value in settings.items():
        operator, _, parameter = name.partition(".")
        _check_known(name, operator, parameter, kinds, declaration.settable)
        chosen.setdefault(operator, {})[parameter] = value
    scope = {each.name: each.name for each in declaration.operators}
    operators = tuple(_chosen(each, chosen, scope) for each in declaration.operators)
    return msgspec.structs.replace(declaration, operators=operators)


def check_settable(declaration: Declaration) -> None:
    """Raise InvalidFlow if the flow lists a parameter that cannot be set, or need not be listed."""
    kinds = {each.name: each.kind for each in every_operator(declaration.operators)}
    for name in declaration.settable:
        operator, _, parameter = name.partition(".")
        if parameter not in LISTED.get(kinds.get(operator, ""), ()):
            known = ", ".join(f"{p} of {kind}" for kind, ps in LISTED.items() for p in ps)
            raise InvalidFlow(
                None, f"'{name[:100]}' cannot be listed as settable: there are {known}"
            )


def _check_known(
    name: str, operator: str, parameter: str, kinds: Mapping[str, str], settable: tuple[str, ...]
) -> None:
    if operator not in kinds:
        known = ", ".join(f"'{each}'" for each in list(kinds)[:20])
        raise InvalidFlow(
            None, f"'{name[:100]}' is of no operator: write OPERATOR.PARAMETER, with one of {known}"
        )
    if parameter in LISTED.get(kinds[operator], ()):
        if name in settable:
            return
        raise InvalidFlow(
            operator, f"the flow does not list '{name[:100]}' as settable", key=parameter
        )
    may_be = SETTABLE.get(kinds[operator], ())
    if parameter not in may_be:
        what = ", ".join(may_be) or "nothing"
        raise InvalidFlow(
            operator, f"of kind {kinds[operator]}: {what} can be set, not '{parameter[:100]}'"
        )


def _chosen(
    operator: Operator, chosen: Mapping[str, Mapping[str, object]], scope: Mapping[str, str]
) -> Operator:
    """Return an operator with its settings. `scope`: meaning of names in its templates."""
    if operator.body:
        meant = {each.rpartition(".")[2]: each for each in placeholders(operator)}
        inner = {**scope, **meant, **{each.name: each.name for each in operator.body}}
        body = tuple(_chosen(each, chosen, inner) for each in operator.body)
        operator = with_body(operator, body)
    if operator.name not in chosen:
        return operator
    values = dict(chosen[operator.name])
    written = {name: values.pop(name) for name in LISTED.get(operator.kind, ()) if name in values}
    params = _with_values(operator.name, operator.params, values)
    operator = msgspec.structs.replace(operator, params=params)
    return _rewritten(operator, written, scope) if written else operator


def _rewritten(
    operator: Operator, values: Mapping[str, object], scope: Mapping[str, str]
) -> Operator:
    """Return the operator with other templates, or another value.

    Names keep their bindings, or refer to operators.
    """
    params: Params = operator.params
    if isinstance(params, Data):
        return msgspec.structs.replace(operator, params=Data(values["value"]))
    for key, value in values.items():
        if not isinstance(value, str):
            raise InvalidFlow(operator.name, "it is a template, a text", key=key)
        if isinstance(params, Format):
            params = Format(value)
        elif isinstance(params, Generation):
            params = _with_message(params, "user" if key == "prompt" else "system", value)
    changed = msgspec.structs.replace(operator, params=params)
    inputs: dict[str, Argument] = {}
    for name in sorted(names_used(changed)):
        if name in operator.inputs:
            inputs[name] = operator.inputs[name]
        elif name in scope:
            inputs[name] = Reference(scope[name])
    return msgspec.structs.replace(changed, inputs=inputs)


def _with_message(params: Generation, role: str, source: str) -> Generation:
    """Replace the last message of a role; a new system message comes first."""
    messages = list(params.messages)
    places = [at for at, each in enumerate(messages) if each.role == role]
    if places:
        messages[places[-1]] = msgspec.structs.replace(messages[places[-1]], template=source)
    elif role == "system":
        messages.insert(0, MessageTemplate("system", source))
    else:
        messages.append(MessageTemplate("user", source))
    return msgspec.structs.replace(params, messages=tuple(messages))


def _with_values(name: str, params: Params, values: Mapping[str, object]) -> Params:
    types = {each.name: each.type for each in msgspec.structs.fields(params)}
    read: dict[str, object] = {}
    for parameter, value in values.items():
        try:
            read[parameter] = msgspec.convert(value, types[parameter])
        except msgspec.ValidationError as error:
            problem = str(error).replace("`", "").removesuffix(" - at $")
            raise InvalidFlow(name, problem, key=parameter) from None
    changed: Params = msgspec.structs.replace(params, **read)
    return changed
