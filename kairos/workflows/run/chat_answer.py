"""Fields of a chat completion that a run needs."""

from typing import Annotated, Any

import msgspec

from kairos.core import UpstreamFailed

_SHOWN = 200  # characters of a refusal


class _Message(msgspec.Struct):
    content: str | None = None
    refusal: object = None
    reasoning: object = None
    reasoning_content: object = None
    tool_calls: object = None


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
    """Text and usage of a chat completion. `cut`: why the text is not whole; None: it is."""

    text: str
    cut: str | None
    finish_reason: str | None
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int


def read_chat(response: dict[str, Any]) -> ChatAnswer:
    """Read a chat completion. Raises UpstreamFailed: it is not one."""
    try:
        answer = msgspec.convert(response, _Answer)
    except msgspec.ValidationError as error:
        said = msgspec.json.encode(response)[:_SHOWN].decode(errors="replace")
        raise UpstreamFailed(
            f"the model's answer is not a chat completion: {error}; it begins: {said}"
        ) from error
    choice, usage = answer.choices[0], answer.usage or _Usage()
    details = usage.prompt_tokens_details or _Details()
    return ChatAnswer(
        text=choice.message.content or "",
        cut=_cut(choice),
        finish_reason=choice.finish_reason,
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
        cached_tokens=details.cached_tokens or 0,
    )


def _cut(choice: _Choice) -> str | None:
    """Return why an answer is not whole; None if it is."""
    message, ended = choice.message, f"finish_reason {choice.finish_reason}"
    if message.refusal:
        return f"the model refused: {str(message.refusal)[:_SHOWN]}"
    if choice.finish_reason == "content_filter":
        return f"a content filter ended it ({ended})"
    if choice.finish_reason == "length":
        what = "it was cut at max_tokens"
        if not message.content and (message.reasoning or message.reasoning_content):
            what = "the reasoning used up max_tokens"
        return f"{what} ({ended})"
    if message.content:
        return None
    if message.tool_calls:
        return f"it has tool calls and no text ({ended})"
    return f"it has no text ({ended})"
