"""Prompts of a flow's calls, with their answers, as the model of an engine sees them.

They follow from their text: a chat is laid out message by message, as by a chat template, and cut
into pieces of 16 tokens from its beginning. So two prompts share the pieces of their common prefix,
and a chat that continues an answer begins like the answered call with its answer. A chat with
`continue_final_message`, as in vLLM, ends within its last message, rounded to whole tokens.

A token is four bytes. Each message begins a new token, as templates' special tokens cause.
"""

from collections.abc import Iterable, Mapping
from hashlib import blake2b

from kairos.core import BYTES_PER_TOKEN
from kairos.simulate.workload.prompt import Prompt, PromptPiece

_PIECE_BYTES = 16 * BYTES_PER_TOKEN  # as a block of vLLM's
_HEADER_TOKENS = 3  # that begin a message: who speaks
_END = b"\n\n\n\n"  # a token that ends it


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
