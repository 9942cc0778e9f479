"""Assembly of a streamed chat completion into a whole answer."""

from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec

from kairos.core import UpstreamFailed
from kairos.proxy.llm.refusals import broken_off

Hear = Callable[[str], None]  # is told each piece of the answer's text
Listen = Callable[[], Hear]

_DATA = b"data:"


class _Delta(msgspec.Struct):
    content: str | None = None


class _Choice(msgspec.Struct):
    delta: _Delta = msgspec.field(default_factory=_Delta)
    finish_reason: str | None = None
    index: int = 0


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = []
    usage: dict[str, Any] | None = None
    error: msgspec.Raw = msgspec.Raw()


_chunk = msgspec.json.Decoder(_Chunk)


async def read_stream(pieces: AsyncIterator[bytes], hear: Hear, most_bytes: int) -> dict[str, Any]:
    """Read events in OpenAI's format to the end, and return the whole answer.

    Raises:
        KairosError: An event reports an error (`refusals.refusal`).
        UpstreamFailed: An event is malformed, the stream exceeds `most_bytes`, or is cut off.
    """
    texts: list[str] = []
    finish: str | None = None
    usage: dict[str, Any] | None = None
    async for event in _events(pieces, most_bytes):
        if event == b"[DONE]":
            break
        chunk = _decoded(event)
        usage = chunk.usage or usage
        for choice in chunk.choices:
            if choice.index == 0:
                finish = choice.finish_reason or finish
                if choice.delta.content:
                    texts.append(choice.delta.content)
                    hear(choice.delta.content)
    if finish is None:
        raise UpstreamFailed("the answer broke off")
    message = {"role": "assistant", "content": "".join(texts)}
    return {"choices": [{"message": message, "finish_reason": finish}], "usage": usage}


async def _events(pieces: AsyncIterator[bytes], most_bytes: int) -> AsyncIterator[bytes]:
    """Yield the data of each event, which is one line."""
    rest, size = b"", 0
    async for piece in pieces:
        size += len(piece)
        if size > most_bytes:
            raise UpstreamFailed(f"the answer exceeds {most_bytes} bytes")
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            if line.startswith(_DATA):
                yield line[len(_DATA) :].strip()


def _decoded(event: bytes) -> _Chunk:
    try:
        chunk = _chunk.decode(event)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UpstreamFailed(f"the model's server sent a malformed event: {error}") from error
    if bytes(chunk.error) not in (b"", b"null"):
        raise broken_off(event)
    return chunk
