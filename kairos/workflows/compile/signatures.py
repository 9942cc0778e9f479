"""Signatures, the single hash of computations: for merging, caches, the journal and re-runs.

Computations with the same value have the same signature: the whole request of an LLM call with the
model's revision, a function with its version and arguments, or a processor's request with its
model. It hashes the rendered request, so an edited template with the same text for a row needs no
new call.
"""

from collections.abc import Mapping
from hashlib import blake2b

import msgspec

FORMAT = "1"  # changes with the contents of a signature
_BYTES = 16  # two of 10^12 different calls collide once in 10^14 runs


def of_request(model: str | None, revision: str, body: Mapping[str, object]) -> str:
    """Return the signature of a chat completion.

    `body` in its own order, since answers follow the order of a schema's properties.

    Raises:
        TypeError, ValueError, OverflowError: it has values that are not JSON.
    """
    return _hash(["llm", FORMAT, model, revision, body], order=None)


def of_call(function: str, version: str, arguments: Mapping[str, object]) -> str:
    """Return the signature of a function call, in any order of arguments.

    Raises: as `of_request`.
    """
    return _hash(["call", FORMAT, function, version, arguments], order="sorted")


def of_processing(
    kind: str, settings: Mapping[str, object], arguments: Mapping[str, object]
) -> str:
    """Return the signature of a processor's request. `settings`: ones that affect the value.

    Raises: as `of_request`.
    """
    return _hash([kind, FORMAT, settings, arguments], order="sorted")


def of_structure(structure: object) -> str:
    """Return the hash of a declared operator, apart from any row."""
    return _hash(["operator", FORMAT, structure], order="sorted")


def _hash(content: object, *, order: str | None) -> str:
    encoder = msgspec.json.Encoder(order=order)  # type: ignore[arg-type]
    return blake2b(encoder.encode(content), digest_size=_BYTES).hexdigest()
