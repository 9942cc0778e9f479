"""The prompts of a flow's calls, and their answers after them, as an engine of the model sees them.

By what they say: a chat is laid out message by message, as a chat template does, and taken apart in
pieces of 16 tokens from its beginning. So two prompts share as many pieces as they begin alike, and
a chat that goes on with an answer begins like the call that was answered so, with its answer. One
with `continue_final_message`, as vLLM has it, ends within its last message: what is of it is whole
tokens.

A token is four bytes. A message begins a token of its own, as templates' special tokens make it.
"""

from collections.abc import Iterable, Mapping
from hashlib import blake2b

from kairos.simulate.flow_answers import BYTES_PER_TOKEN
from kairos.simulate.workload.prompt import Prompt, PromptPiece

_PIECE_BYTES = 16 * BYTES_PER_TOKEN  # as a block of vLLM's
_HEADER_TOKENS = 3  # that begin a message: who speaks
_END = b"\n\n\n\n"  # a token that ends it


def prompt_of(body: Mapping[str, object]) -> Prompt:
    """Of a chat completion's request."""
    return _pieces(_chat(body))


def answered_prompt(body: Mapping[str, object], answer: str) -> Prompt:
    """The same with the answer after it."""
    return _pieces(_chat(body) + _padded(answer.encode()))


def beginning_of(messages: Iterable[Mapping[str, str]]) -> Prompt:
    """Of every chat that begins with these."""
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
