"""JSON in the answers of models: strict, or as models often wrap it, and its check by a schema.

The check covers the part of JSON Schema (2020-12) that engines can enforce on an answer: types,
enum, const, objects, lists, bounds, `anyOf`, `oneOf`, `allOf` and references within the schema.
Other keywords are ignored (`pattern` too: a regular expression may take for ever), so a valid value
always passes, unless the check takes too many steps: a schema that refers to itself twice doubles
the work at each level.
"""

import json
import re
from collections.abc import Iterator, Mapping
from operator import ge, gt, le, lt

import msgspec

from kairos.workflows.compile.invalid import OperatorFailed
from kairos.workflows.compile.operators import Parse
from kairos.workflows.compile.values import type_name

_SHOWN = 200  # characters of an answer in an error
_STARTS = 100  # places in an answer where JSON may begin, that are tried
_FENCE = re.compile(r"```[^\n`]*\n(.*?)```", re.DOTALL)
_THOUGHT = "</think>"
_START = re.compile(r"[\[{]")
_scan = json.JSONDecoder().raw_decode


def read_answer(
    text: str, schema: Mapping[str, object], parse: Parse, cut: str | None = None
) -> object:
    """Return the JSON value of an answer.

    Args:
        text: the answer.
        schema: JSON Schema, to which the value must keep.
        parse: lenient takes the first of these that is JSON and keeps to the schema: the whole
            text; what follows the last `</think>`; each fenced block; each object or list in the
            text, from left to right.
        cut: why the answer is not whole, if it is not.

    Raises:
        OperatorFailed: it has no such value. The message has the beginning of the answer.
    """
    first: str | None = None
    for candidate in (text,) if parse == "strict" else _candidates(text):
        try:
            value = msgspec.json.decode(candidate)
        except (msgspec.DecodeError, RecursionError, UnicodeEncodeError) as error:
            first = first or f"is not JSON: {cut or error}"
            continue
        wrong = problem(schema, value)
        if wrong is None:
            return value
        if first is None or first.startswith("is not JSON"):
            first = f"does not keep to its schema: {wrong}"
    hint = ""
    if parse == "strict" and not cut and any(each != text for each in _candidates(text)):
        hint = " (`parse: lenient` takes JSON out of fences and prose)"
    raise OperatorFailed(f"the answer {first}{hint}; it begins: {text[:_SHOWN]}")


def _candidates(text: str) -> Iterator[str]:
    yield text
    rest = text.rpartition(_THOUGHT)[2].strip()
    if rest != text:
        yield rest
    for fenced in _FENCE.finditer(rest):
        yield fenced[1]
    at = 0
    for _ in range(_STARTS):
        begun = _START.search(rest, at)
        if begun is None:
            return
        try:
            end = _scan(rest, begun.start())[1]
        except (ValueError, RecursionError):
            at = begun.end()
            continue
        yield rest[begun.start() : end]
        at = end


_DEEPEST = 100
# Compared parts of a schema and a value: two seconds.
_MOST_STEPS, _ENUM = 200_000, 10  # this many values of an enum are one part


def problem(schema: object, value: object) -> str | None:
    """Return what is wrong with a value, and where; None if all checked keywords fit."""
    try:
        return next(_problems(_Whole(schema), schema, value, "", 0), None)
    except _TooMuch:
        return f"it takes more than {_MOST_STEPS} steps to hold it against its schema"


class _TooMuch(Exception):
    """The check takes too many steps."""


class _Whole:
    """Schema, with the remaining steps of its check."""

    def __init__(self, schema: object) -> None:
        self.schema, self._left = schema, _MOST_STEPS

    def step(self, parts: int) -> None:
        """Count steps. Raises _TooMuch."""
        self._left -= parts
        if self._left < 0:
            raise _TooMuch


def _problems(root: _Whole, schema: object, value: object, where: str, depth: int) -> Iterator[str]:
    if not isinstance(schema, Mapping):
        if schema is False:
            yield f"{where or 'it'} may not be there"
        return
    if depth > _DEEPEST:
        yield f"{where or 'it'} is nested too deeply"
        return
    at, enum = where or "it", schema.get("enum")
    root.step(1 + (len(enum) // _ENUM if isinstance(enum, list) else 0))
    if isinstance(schema.get("$ref"), str):
        target = _target(root.schema, schema["$ref"])
        yield from _problems(root, target, value, where, depth + 1)
    types = schema.get("type")
    wanted = [types] if isinstance(types, str) else types if isinstance(types, list) else None
    if wanted is not None and not any(_is(value, each) for each in wanted):
        yield f"{at} is a {type_name(value)}, not a {' or '.join(map(str, wanted))}"
        return
    if "const" in schema and not _same(value, schema["const"]):
        yield f"{at} is not {schema['const']!r}"
    if isinstance(enum, list) and not any(_same(value, each) for each in enum):
        yield f"{at} is none of {', '.join(map(repr, enum[:20]))}"
    yield from _combined(root, schema, value, where, depth)
    if isinstance(value, Mapping):
        yield from _of_object(root, schema, value, where, depth)
    elif isinstance(value, list):
        yield from _of_list(root, schema, value, where, depth)
    else:
        yield from _of_bounds(schema, value, at)


def _combined(
    root: _Whole, schema: Mapping[str, object], value: object, where: str, depth: int
) -> Iterator[str]:
    for key in ("anyOf", "oneOf", "allOf"):
        parts = schema.get(key)
        if not isinstance(parts, list) or not parts:
            continue
        fits = [not any(_problems(root, part, value, where, depth + 1)) for part in parts]
        if (key == "allOf" and not all(fits)) or not any(fits):
            yield f"{where or 'it'} keeps to {'not all' if key == 'allOf' else 'none'} of {key}"
        elif key == "oneOf" and sum(fits) > 1:
            yield f"{where or 'it'} keeps to more than one of oneOf"


def _of_object(
    root: _Whole, schema: Mapping[str, object], value: Mapping[str, object], where: str, depth: int
) -> Iterator[str]:
    required = schema.get("required")
    for name in required if isinstance(required, list) else ():
        if name not in value:
            yield f"{where or 'it'} has no '{name}'"
    properties = schema.get("properties")
    known = properties if isinstance(properties, Mapping) else {}
    others = schema.get("additionalProperties", True)
    for name, each in value.items():
        inner = f"{where}.{name}" if where else str(name)
        yield from _problems(root, known.get(name, others), each, inner[:200], depth + 1)
    yield from _counts(schema, len(value), "Properties", where)


def _of_list(
    root: _Whole, schema: Mapping[str, object], value: list[object], where: str, depth: int
) -> Iterator[str]:
    prefix = schema.get("prefixItems")
    first = prefix if isinstance(prefix, list) else []
    rest = schema.get("items", True)
    for index, each in enumerate(value):
        part = first[index] if index < len(first) else rest
        yield from _problems(root, part, each, f"{where}[{index}]"[:200], depth + 1)
    yield from _counts(schema, len(value), "Items", where)


def _of_bounds(schema: Mapping[str, object], value: object, at: str) -> Iterator[str]:
    if isinstance(value, str):
        yield from _counts(schema, len(value), "Length", at)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        for key, wrong in (
            ("minimum", lt),
            ("maximum", gt),
            ("exclusiveMinimum", le),
            ("exclusiveMaximum", ge),
        ):
            bound = schema.get(key)
            if isinstance(bound, int | float) and wrong(value, bound):
                yield f"{at} is {value}, against {key} {bound}"


def _counts(schema: Mapping[str, object], size: int, what: str, where: str) -> Iterator[str]:
    least, most = schema.get(f"min{what}"), schema.get(f"max{what}")
    if isinstance(least, int) and size < least:
        yield f"{where or 'it'} has {size} {what.lower()}, {least} at least"
    if isinstance(most, int) and size > most:
        yield f"{where or 'it'} has {size} {what.lower()}, {most} at most"


def _target(schema: object, reference: str) -> object:
    """Return the schema at `#/a/b`; True, which accepts all values, if it does not exist."""
    found = schema
    for key in reference.removeprefix("#").split("/")[1:]:
        name = key.replace("~1", "/").replace("~0", "~")
        if not isinstance(found, Mapping) or name not in found:
            return True
        found = found[name]
    return found if reference.startswith("#") else True


def _is(value: object, name: object) -> bool:
    if name == "integer":
        whole = isinstance(value, float) and value.is_integer()
        return whole or (isinstance(value, int) and not isinstance(value, bool))
    return type_name(value).replace("list", "array") == name


def _same(value: object, other: object) -> bool:
    """Return whether two JSON values are equal; true is not 1, at any depth."""
    if isinstance(value, list) and isinstance(other, list):
        return len(value) == len(other) and all(map(_same, value, other))
    if isinstance(value, Mapping) and isinstance(other, Mapping):
        return value.keys() == other.keys() and all(_same(value[key], other[key]) for key in value)
    return value == other and isinstance(value, bool) == isinstance(other, bool)
