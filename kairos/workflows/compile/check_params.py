"""Checks of operators' parameters."""

import re
from collections.abc import Sequence

import msgspec

from kairos.workflows.compile.invalid import InvalidFlow
from kairos.workflows.compile.operators import (
    MOST_ITEMS,
    MOST_ROUNDS,
    NAME,
    Batched,
    Branch,
    Chunking,
    Constant,
    Data,
    Embedding,
    Generation,
    Ingest,
    Loop,
    MapOver,
    Operator,
    Processing,
    RegisteredCall,
    Rerank,
    Search,
)
from kairos.workflows.compile.retrieval import arguments_of

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
    if params.schema is not None:
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
        raise InvalidFlow(
            operator.name,
            "a name begins with a letter and has letters, digits and _ alone, 64 at most",
            key="collection",
        )


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
