"""Values of operators: JSON, and its text in prompts."""

from collections.abc import Mapping

import msgspec

from kairos.plan.operators import Path

BYTES_PER_TOKEN = 4  # of texts whose tokens nobody has counted


class Missing(Exception):
    """A value has no such part."""


def as_text(value: object) -> str:
    """How a value stands in a prompt: a text as it is, nothing for null, all else as JSON."""
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    return msgspec.json.encode(value).decode()


def part(value: object, path: Path) -> object:
    """Raises Missing: there is no such part. Only keys and positions count: never an attribute."""
    for key in path:
        if isinstance(value, Mapping):
            if key not in value:
                raise Missing(f"there is no '{str(key)[:100]}'")
            value = value[key]
        elif isinstance(value, list) and isinstance(key, int) and -len(value) <= key < len(value):
            value = value[key]
        else:
            raise Missing(f"a {type_name(value)} has no '{str(key)[:100]}'")
    return value


def type_name(value: object) -> str:
    """As JSON calls it."""
    for types, name in (
        (bool, "boolean"),
        (int | float, "number"),
        (str, "string"),
        (list | tuple, "list"),
        (Mapping, "object"),
    ):
        if isinstance(value, types):
            return name
    return "null"
