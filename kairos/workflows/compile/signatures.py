"""The one hash of what is computed: for merging, the prompt cache, the journal and re-runs.

What would give the same value has the same signature: the whole request of an LLM call with the
model's revision, a function with its version and arguments, or what a processor is asked with its
model. It is of what was rendered, so an edited template that says the same of a row needs no new
call.
"""

from collections.abc import Mapping
from hashlib import blake2b

import msgspec

FORMAT = "1"  # changes with what goes into a signature
_BYTES = 16  # two of a million million different calls are the same once in 10^14 runs


def of_request(model: str | None, revision: str, body: Mapping[str, object]) -> str:
    """Of a chat completion. `body` in its own order: a schema's properties are asked for in it.

    Raises:
        TypeError, ValueError, OverflowError: it has what is not JSON.
    """
    return _hash(["llm", FORMAT, model, revision, body], order=None)


def of_call(function: str, version: str, arguments: Mapping[str, object]) -> str:
    """Of a function, whatever the order of its arguments. Raises: as `of_request`."""
    return _hash(["call", FORMAT, function, version, arguments], order="sorted")


def of_processing(
    kind: str, settings: Mapping[str, object], arguments: Mapping[str, object]
) -> str:
    """Of what a processor is asked. `settings`: those on which the value depends. Raises: as
    `of_request`."""
    return _hash([kind, FORMAT, settings, arguments], order="sorted")


def of_structure(structure: object) -> str:
    """Of an operator as it is declared, apart from any row."""
    return _hash(["operator", FORMAT, structure], order="sorted")


def _hash(content: object, *, order: str | None) -> str:
    encoder = msgspec.json.Encoder(order=order)  # type: ignore[arg-type]
    return blake2b(encoder.encode(content), digest_size=_BYTES).hexdigest()
