"""JSON in the answers of models: strict, or as models often wrap it."""

import json
import re
from collections.abc import Iterator, Mapping

import msgspec

from kairos.workflows.compile.invalid import OperatorFailed
from kairos.workflows.compile.json_schema import problem
from kairos.workflows.compile.operators import Parse

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
