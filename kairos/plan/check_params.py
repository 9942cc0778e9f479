"""Whether what an operator says of itself is within bounds."""

import msgspec

from kairos.plan.invalid import InvalidFlow
from kairos.plan.operators import (
    MOST_ITEMS,
    MOST_ROUNDS,
    Branch,
    Constant,
    Data,
    Generation,
    Loop,
    MapOver,
    Operator,
    RegisteredCall,
)

MOST_RETRIES = 10
MOST_TOKENS = 10_000_000
MOST_VALUE_BYTES = 1024 * 1024  # of constants, schemas
MOST_MESSAGES = 64
MOST_CASES = 256


def check_params(operator: Operator) -> None:
    """Raises InvalidFlow: says which key, and between what it may be."""
    _between(operator, "retries", operator.retries, 0, MOST_RETRIES)
    params = operator.params
    if isinstance(params, Generation):
        _check_generation(operator, params)
    elif isinstance(params, Loop):
        _between(operator, "max_rounds", params.max_rounds, 1, MOST_ROUNDS)
    elif isinstance(params, MapOver):
        _between(operator, "max_items", params.max_items, 1, MOST_ITEMS)
    elif isinstance(params, Branch):
        _between(operator, "cases", len(params.cases), 1, MOST_CASES)
    elif isinstance(params, Data):
        _check_json(operator, "value", params.value)
    elif isinstance(params, RegisteredCall) and not 1 <= len(params.function) <= 256:
        raise InvalidFlow(operator.name, "it names a registered function", key="function")
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
    if params.model is not None and not 1 <= len(params.model) <= 256:
        raise InvalidFlow(operator.name, "a name of 1 to 256 characters", key="model")
    if params.schema is not None:
        _check_json(operator, "schema", params.schema)


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
