"""Texts of a flow's calls: made-up answers, and prompts as the model of an engine sees them.

An answer has between a quarter and all of its maximum tokens, uniformly distributed by the call's
signature; so equal calls have equal answers, and a run is reproducible. With a schema it is valid
JSON. A branch on a made-up text rarely finds its case, and a loop rarely ends before its last
round: give such operators a schema with an `enum`.

Prompts follow from their text: a chat is laid out message by message, as by a chat template, and
cut into pieces of 16 tokens from its beginning. So two prompts share the pieces of their common
prefix, and a chat that continues an answer begins like the answered call with its answer. A chat
with `continue_final_message`, as in vLLM, ends within its last message, rounded to whole tokens.

A token is four bytes. Each message begins a new token, as templates' special tokens cause.
"""

from collections.abc import Iterable, Mapping
from hashlib import blake2b

import msgspec

from kairos.core import BYTES_PER_TOKEN, EXPECTED_COMPLETION_TOKENS, text_digest
from kairos.simulate.workload.prompt import Prompt, PromptPiece
from kairos.workflows import Generation

SHORTEST = 0.25  # of the tokens that an answer may have
_DEEPEST = 20

_PIECE_BYTES = 16 * BYTES_PER_TOKEN  # as a block of vLLM's
_HEADER_TOKENS = 3  # that begin a message: who speaks
_END = b"\n\n\n\n"  # a token that ends it


def answer(params: Generation, signature: str, shortest: float = SHORTEST) -> str:
    """A token is taken for four bytes."""
    if params.schema is not None:
        return msgspec.json.encode(_sample(params.schema, params.schema, signature, 0)).decode()
    most = params.max_tokens or 2 * EXPECTED_COMPLETION_TOKENS
    tokens = max(1, round(most * (shortest + (1 - shortest) * share_of(signature))))
    word = f"{signature[:7]} "
    return (word * (tokens * BYTES_PER_TOKEN // len(word) + 1))[: tokens * BYTES_PER_TOKEN]


def tokens_of(text: str) -> int:
    return max(1, -(-len(text.encode()) // BYTES_PER_TOKEN))


def share_of(name: str) -> float:
    """Return a number in [0, 1) by a hash of the name."""
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
            chosen = given[int(share_of(name) * len(given))]
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
        return int(low + share_of(name) * max(0, high - low))
    if kind == "string":
        return _text(name, schema.get("minLength"))
    return share_of(name) < 0.5 if kind == "boolean" else None


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


def prompt_of(body: Mapping[str, object]) -> Prompt:
    """Return the prompt of a chat completion's request."""
    return _pieces(_chat(body))


def answered_prompt(body: Mapping[str, object], answer: str) -> Prompt:
    """Return the same prompt, followed by the answer."""
    return _pieces(_chat(body) + _padded(answer.encode()))


def beginning_of(messages: Iterable[Mapping[str, str]]) -> Prompt:
    """Return the common prefix of all chats that begin with these messages."""
    return _pieces(b"".join(map(_message, messages)))


def _chat(body: Mapping[str, object]) -> bytes:
    messages = body["messages"]
    assert isinstance(messages, list)
    if not body.get("continue_final_message"):
        return b"".join(map(_message, messages)) + _header("assistant")
    *before, last = messages
    begun: bytes = last["content"].encode()
    whole = begun[: len(begun) // BYTES_PER_TOKEN * BYTES_PER_TOKEN]
    return b"".join(map(_message, before)) + _header(last["role"]) + whole


def _message(message: Mapping[str, str]) -> bytes:
    return _header(message["role"]) + _padded(message["content"].encode()) + _END


def _header(role: str) -> bytes:
    return f"<{role}>".encode().ljust(_HEADER_TOKENS * BYTES_PER_TOKEN, b"\0")


def _padded(text: bytes) -> bytes:
    return text.ljust(-(-len(text) // BYTES_PER_TOKEN) * BYTES_PER_TOKEN, b"\0")


def _pieces(text: bytes) -> Prompt:
    pieces = []
    for at in range(0, len(text), _PIECE_BYTES):
        part = text[at : at + _PIECE_BYTES]
        name = blake2b(part, digest_size=8).hexdigest()
        pieces.append(PromptPiece(f"{name}.{at}", len(part) // BYTES_PER_TOKEN))
    return tuple(pieces)
