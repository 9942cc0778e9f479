"""Made-up answers to the calls of a flow: nothing is generated.

An answer has between a quarter and all of its maximum tokens, uniformly distributed by the call's
signature; so equal calls have equal answers, and a run is reproducible. With a schema it is valid
JSON. A branch on a made-up text rarely finds its case, and a loop rarely ends before its last
round: give such operators a schema with an `enum`.
"""

from collections.abc import Mapping

import msgspec

from kairos.core import BYTES_PER_TOKEN, EXPECTED_COMPLETION_TOKENS, text_digest
from kairos.workflows import Generation

SHORTEST = 0.25  # of the tokens that an answer may have
_DEEPEST = 20


def answer(params: Generation, signature: str, shortest: float = SHORTEST) -> str:
    """A token is taken for four bytes."""
    if params.schema is not None:
        return msgspec.json.encode(_sample(params.schema, params.schema, signature, 0)).decode()
    most = params.max_tokens or 2 * EXPECTED_COMPLETION_TOKENS
    tokens = max(1, round(most * (shortest + (1 - shortest) * _share(signature))))
    word = f"{signature[:7]} "
    return (word * (tokens * BYTES_PER_TOKEN // len(word) + 1))[: tokens * BYTES_PER_TOKEN]


def tokens_of(text: str) -> int:
    return max(1, -(-len(text.encode()) // BYTES_PER_TOKEN))


def _share(name: str) -> float:
    return text_digest(name) / 2**64


def _sample(root: Mapping[str, object], schema: object, name: str, depth: int) -> object:
    """A value of a schema, as far as its plain keywords say what that is."""
    if not isinstance(schema, Mapping) or depth > _DEEPEST:
        return None
    if "const" in schema:
        return schema["const"]
    for key in ("enum", "anyOf", "oneOf"):
        given = schema.get(key)
        if isinstance(given, list) and given:
            chosen = given[int(_share(name) * len(given))]
            return chosen if key == "enum" else _sample(root, chosen, name, depth + 1)
    reference = schema.get("$ref")
    if isinstance(reference, str):
        return _sample(root, _referred(root, reference), name, depth + 1)
    return _of_type(root, schema, name, depth)


def _of_type(
    root: Mapping[str, object], schema: Mapping[str, object], name: str, depth: int
) -> object:
    kind = schema.get("type")
    if isinstance(kind, list):
        kind = kind[0] if kind else None
    if kind == "object" or "properties" in schema:
        properties = schema.get("properties")
        inner = properties if isinstance(properties, Mapping) else {}
        return {key: _sample(root, of, f"{name}.{key}", depth + 1) for key, of in inner.items()}
    if kind == "array":
        least = schema.get("minItems")
        count = least if isinstance(least, int) else 1
        return [
            _sample(root, schema.get("items"), f"{name}.{at}", depth + 1) for at in range(count)
        ]
    if kind in ("integer", "number"):
        low, high = schema.get("minimum", 0), schema.get("maximum", 10)
        assert isinstance(low, int | float)
        assert isinstance(high, int | float)
        return int(low + _share(name) * max(0, high - low))
    if kind == "string":
        return _text(name, schema.get("minLength"))
    return _share(name) < 0.5 if kind == "boolean" else None


def _text(name: str, least: object) -> str:
    """Return a text of eight characters, or of the minimum length; different for each name."""
    word = f"{text_digest(name):016x}"[:8]
    long = least if isinstance(least, int) and least > len(word) else len(word)
    return (f"{word} " * (long // len(word) + 1))[:long]


def _referred(root: Mapping[str, object], reference: str) -> object:
    found: object = root
    for key in reference.removeprefix("#").split("/")[1:]:
        found = found.get(key) if isinstance(found, Mapping) else None
    return found
