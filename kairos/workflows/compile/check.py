"""Checks of a declared workflow, and of its operators' parameters, before it is run."""

import re
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from kairos.workflows.compile.check_templates import check_templates
from kairos.workflows.compile.graph import ancestors, in_order, outputs_need, varies_by, varying
from kairos.workflows.compile.invalid import InvalidFlow, meant_by
from kairos.workflows.compile.operators import (
    DEEPEST_BODY,
    MOST_ITEMS,
    MOST_OPERATORS,
    MOST_ROUNDS,
    NAME,
    RESERVED,
    Batched,
    Branch,
    Chunking,
    Constant,
    Data,
    Declaration,
    Embedding,
    Generation,
    Group,
    Ingest,
    Input,
    Loop,
    MapOver,
    Operator,
    Processing,
    RegisteredCall,
    Rerank,
    Search,
)
from kairos.workflows.compile.references import (
    inner_arguments,
    named_in,
    needs,
    own_arguments,
    placeholders,
)
from kairos.workflows.compile.retrieval import arguments_of

_NAMES = "a name begins with a letter and has letters, digits and _ alone, 64 at most"


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
    _effects_wanted(operators, outputs_need(declaration.outputs))


def every_operator(operators: Iterable[Operator]) -> Iterator[Operator]:
    """Yield all operators, also in bodies."""
    for each in operators:
        yield each
        yield from every_operator(each.body)


def llm_operators(operators: Iterable[Operator]) -> dict[str, Generation]:
    """Return the parameters of LLM operators, also in bodies, by name."""
    return {
        each.name: each.params
        for each in every_operator(operators)
        if isinstance(each.params, Generation)
    }


def _check_names(operators: Sequence[Operator]) -> None:
    seen: set[str] = set()
    for each in every_operator(operators):
        name = each.name
        if not re.match(NAME, name):
            raise InvalidFlow(name[:100], _NAMES)
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
        for name in (*each.after, *named_in(own_arguments(each))):
            _check_known(each.name, name, seen)
        if not isinstance(each.params, Loop | MapOver):
            continue
        if depth == DEEPEST_BODY:
            raise InvalidFlow(each.name, f"bodies are nested more than {DEEPEST_BODY} deep")
        if not each.body:
            raise InvalidFlow(each.name, "its body has no operator", key="body")
        inner = seen | {*placeholders(each)}
        for name in named_in(inner_arguments(each)):
            _check_known(each.name, name, inner | {body.name for body in each.body})
        _check_scope(each.body, inner, depth=depth + 1)


def _check_known(
    operator: str | None, name: str, seen: frozenset[str], key: str | None = None
) -> None:
    if name not in seen:
        hint = meant_by(name, sorted(seen))
        raise InvalidFlow(operator, f"there is no operator '{name[:100]}' here; {hint}", key=key)


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
        for name in named_in([output.value]):
            _check_known(None, name, seen, key=f"outputs.{output.column}")


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
            _effects_wanted(each.body, named_in(inner_arguments(each)))


MOST_RETRIES = 10
MOST_TOKENS = 10_000_000
MOST_VALUE_BYTES = 1024 * 1024  # of constants, schemas
MOST_MESSAGES = 64
MOST_CASES = 256
MOST_WORDS = 10_000  # of a passage
MOST_TOP_K = 1_000
MOST_BATCH = 2_048
MOST_CPUS = 1_024


def check_params(operator: Operator) -> None:
    """Raise InvalidFlow if a parameter is out of bounds; the message has the key and the bounds."""
    _between(operator, "retries", operator.retries, 0, MOST_RETRIES)
    params = operator.params
    match params:
        case Generation():
            _check_generation(operator, params)
        case Loop(max_rounds=rounds):
            _between(operator, "max_rounds", rounds, 1, MOST_ROUNDS)
        case MapOver(max_items=items):
            _between(operator, "max_items", items, 1, MOST_ITEMS)
        case Branch(cases=cases):
            _between(operator, "cases", len(cases), 1, MOST_CASES)
        case Data(value=value):
            _check_json(operator, "value", value)
        case RegisteredCall():
            _check_call(operator, params)
    if isinstance(params, Batched):
        _check_batch(operator, params)
    if isinstance(params, Chunking | Processing):
        _check_retrieval(operator, params)
    _check_constants(operator)


def _check_constants(operator: Operator) -> None:
    for name, argument in operator.inputs.items():
        if isinstance(argument, Constant):
            _check_json(operator, name, argument.value)
    if operator.on_error == "default":
        _check_json(operator, "default", operator.default)


def _check_generation(operator: Operator, params: Generation) -> None:
    _between(operator, "messages", len(params.messages), 1, MOST_MESSAGES)
    _between(operator, "temperature", params.temperature, 0, 2)
    if params.max_tokens is not None:
        _between(operator, "max_tokens", params.max_tokens, 1, MOST_TOKENS)
    if params.top_p is not None:
        _between(operator, "top_p", params.top_p, 0, 1)
    if len(params.stop) > 16 or not all(1 <= len(each) <= 256 for each in params.stop):
        raise InvalidFlow(operator.name, "16 texts of 1 to 256 characters at most", key="stop")
    _check_model(operator, params.model)
    _check_json(operator, "schema", params.schema)


def _check_retrieval(operator: Operator, params: Chunking | Processing) -> None:
    _check_arguments(operator, arguments_of(params))
    match params:
        case Chunking(size=size):
            _between(operator, "size", size, 1, MOST_WORDS)
            _between(operator, "overlap", params.overlap, 0, size - 1)
        case Search(top_k=top_k) | Rerank(top_k=top_k):
            _between(operator, "top_k", top_k, 1, MOST_TOP_K)
    if isinstance(params, Embedding | Rerank):
        _check_model(operator, params.model)
    name = params.collection if isinstance(params, Ingest | Search) else None
    if name is not None and not re.match(NAME, name):
        raise InvalidFlow(operator.name, _NAMES, key="collection")


def _check_call(operator: Operator, params: RegisteredCall) -> None:
    if not 1 <= len(params.function) <= 256:
        raise InvalidFlow(operator.name, "it names a registered function", key="function")
    if params.cpus is not None:
        _between(operator, "cpus", params.cpus, 1, MOST_CPUS)
        if params.is_batched:
            one = "a function that takes several calls at once runs where they are gathered"
            raise InvalidFlow(operator.name, one, key="cpus")
    if params.partial and (params.purity != "pure" or len(operator.inputs) != 1):
        one = "a function that takes prefixes is pure, and has a text as its only argument"
        raise InvalidFlow(operator.name, one, key="partial")


def _check_batch(operator: Operator, params: Batched) -> None:
    if params.batch is None:
        return
    _between(operator, "batch", params.batch, 1, MOST_BATCH)
    if not params.is_batched:
        one = "the function takes one call at a time: register it with batched=True"
        raise InvalidFlow(operator.name, one, key="batch")


def _check_arguments(operator: Operator, wanted: Sequence[str]) -> None:
    """Raise InvalidFlow unless the operator has exactly these inputs."""
    said = ", ".join(wanted)
    for name in wanted:
        if name not in operator.inputs:
            has_name = name == "collection"
            hint = " (or the name of one that stays, as `collection`)" if has_name else ""
            raise InvalidFlow(
                operator.name, f"an operator of kind {operator.kind} has {said}{hint}", key=name
            )
    for name in operator.inputs:
        if name not in wanted:
            raise InvalidFlow(
                operator.name, f"'{name[:100]}' is bound, and {operator.kind} has {said} alone"
            )


def _check_model(operator: Operator, model: str | None) -> None:
    if model is not None and not 1 <= len(model) <= 256:
        raise InvalidFlow(operator.name, "a name of 1 to 256 characters", key="model")


def _between(operator: Operator, key: str, value: float, least: float, most: float) -> None:
    if not least <= value <= most:
        raise InvalidFlow(operator.name, f"it is {value:g}, and may be {least} to {most}", key=key)


def _check_json(operator: Operator, key: str, value: object) -> None:
    try:
        size = len(msgspec.json.encode(value))
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise InvalidFlow(operator.name, f"it is not JSON: {error}", key=key) from error
    if size > MOST_VALUE_BYTES:
        raise InvalidFlow(
            operator.name, f"it has {size} bytes, {MOST_VALUE_BYTES} at most", key=key
        )
