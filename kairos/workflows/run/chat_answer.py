"""Answers of models: fields of a chat completion, and items of a list while its text streams in."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Annotated, Any

import ijson
import msgspec

from kairos.core import UpstreamFailed
from kairos.workflows.compile.operators import Path

_SHOWN = 200  # characters of a refusal

_GROWTH = 16


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


def list_listener(
    path: Path, most: int, tell: Callable[[int, list[object]], None]
) -> Callable[[str], None]:
    """Return a function that takes the text, and tells of items as they are finished.

    `tell` gets the position of the first new item, and the new items; `most` items in all. It is
    not called again after text that is not JSON. Two paths whose keys have dots may be confused:
    items are only computed ahead, and the whole answer decides.
    """
    found: list[Any] = ijson.sendable_list()
    parser: Any = ijson.items_coro(found, ".".join((*map(str, path), "item")), use_float=True)
    told = 0

    def on_text(text: str) -> None:
        nonlocal parser, told
        if parser is None:
            return
        try:
            parser.send(text.encode("utf-8", "replace"))
        except (ijson.JSONError, StopIteration, ValueError, OverflowError, RecursionError):
            parser = None
        if found:
            new = found[: most - told]
            found.clear()
            tell(told, new)
            told += len(new)
        if told >= most:
            parser = None

    return on_text


class ParsedItems:
    """Parts of a text that a function finds, while the text streams in.

    The function is called with the text so far, one call at a time, each time that the text has
    grown by a sixteenth. All parts but the last are finished. Parts that turn out different later
    are passed on again. If the function fails, nothing is passed on that time.
    """

    def __init__(
        self,
        parse: Callable[[str], Awaitable[object]],
        most: int,
        tell: Callable[[int, list[object]], None],
    ) -> None:
        self._parse, self._most, self._tell = parse, most, tell
        self._text, self._parsed = "", 0  # characters of the latest call
        self._told: list[object] = []
        self._task: asyncio.Task[None] | None = None

    def on_text(self, text: str) -> None:
        """Take the next piece of text."""
        self._text += text
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._parse_growing())

    def close(self) -> None:
        """Pass on no more parts."""
        if self._task is not None:
            self._task.cancel()

    async def _parse_growing(self) -> None:
        while len(self._text) - self._parsed > self._parsed // _GROWTH:
            self._parsed = len(self._text)
            found = await self._parse(self._text)
            if isinstance(found, list):
                self._pass_on(found[: min(len(found) - 1, self._most)] if found else [])

    def _pass_on(self, finished: list[object]) -> None:
        same = 0
        for one, other in zip(finished, self._told, strict=False):
            if one != other:
                break
            same += 1
        if same < max(len(finished), len(self._told)):
            self._told = finished
            self._tell(same, finished[same:])
