"""Settings of a single query: parameters of a flow's operators, which whoever asks may choose.

What a flow *does* stays as it was declared: prompts, schemas, functions, collections and edges are
none of these.
"""

from collections.abc import Mapping

import msgspec

from kairos.plan.check import every
from kairos.plan.invalid import InvalidFlow
from kairos.plan.operators import Declaration, Loop, MapOver, Operator, Params

MOST_SETTINGS = 64
# By kind. A number or text that is larger than its operator may have is refused as a flow with it.
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
    """The same flow, with `settings`: by `OPERATOR.PARAMETER`, operators of bodies too. It is to be
    checked again.

    Raises:
        InvalidFlow: there is no such operator, or it has no such parameter, or not with this value.
    """
    if not settings:
        return declaration
    if len(settings) > MOST_SETTINGS:
        raise InvalidFlow(None, f"{len(settings)} settings, {MOST_SETTINGS} at most")
    kinds = {each.name: each.kind for each in every(declaration.operators)}
    chosen: dict[str, dict[str, object]] = {}
    for name, value in settings.items():
        operator, _, parameter = name.partition(".")
        _check_known(name, operator, parameter, kinds)
        chosen.setdefault(operator, {})[parameter] = value
    operators = tuple(_chosen(each, chosen) for each in declaration.operators)
    return msgspec.structs.replace(declaration, operators=operators)


def _check_known(name: str, operator: str, parameter: str, kinds: Mapping[str, str]) -> None:
    if operator not in kinds:
        known = ", ".join(f"'{each}'" for each in list(kinds)[:20])
        raise InvalidFlow(
            None, f"'{name[:100]}' is of no operator: write OPERATOR.PARAMETER, with one of {known}"
        )
    may_be = SETTABLE.get(kinds[operator], ())
    if parameter not in may_be:
        what = ", ".join(may_be) or "nothing"
        raise InvalidFlow(
            operator, f"of kind {kinds[operator]}: {what} can be set, not '{parameter[:100]}'"
        )


def _chosen(operator: Operator, chosen: Mapping[str, Mapping[str, object]]) -> Operator:
    params = operator.params
    if isinstance(params, Loop | MapOver):
        body = tuple(_chosen(each, chosen) for each in params.body)
        params = msgspec.structs.replace(params, body=body)
    if operator.name in chosen:
        params = _with_values(operator.name, params, chosen[operator.name])
    return msgspec.structs.replace(operator, params=params)


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
