"""What of a chat completion a run needs."""

from typing import Annotated, Any

import msgspec

from kairos.errors import UpstreamFailed


class _Message(msgspec.Struct):
    content: str | None = None


class _Choice(msgspec.Struct):
    message: _Message
    finish_reason: str | None = None


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: _Details | None = None


class _Answer(msgspec.Struct):
    choices: Annotated[list[_Choice], msgspec.Meta(min_length=1)]
    usage: _Usage | None = None


class ChatAnswer(msgspec.Struct, frozen=True):
    """`is_cut`: it ended because it was as long as it might be."""

    text: str
    is_cut: bool
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int


def read_chat(response: dict[str, Any]) -> ChatAnswer:
    """Raises UpstreamFailed: it is no chat completion."""
    try:
        answer = msgspec.convert(response, _Answer)
    except msgspec.ValidationError as error:
        raise UpstreamFailed(f"the model's answer is no chat completion: {error}") from error
    choice, usage = answer.choices[0], answer.usage or _Usage()
    details = usage.prompt_tokens_details or _Details()
    return ChatAnswer(
        text=choice.message.content or "",
        is_cut=choice.finish_reason == "length",
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
        cached_tokens=details.cached_tokens or 0,
    )
