"""Prompts parsed for identity inference.

Of the four APIs: chat completions, responses, completions, messages. Malformed parts are ignored:
the engine reports them.
"""

import re
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import accumulate, chain
from typing import Any

import msgspec

_MAX_PROMPT_BYTES = 4 << 20  # of a longer one, and of more messages, nothing is inferred
_MAX_MESSAGES = 4096
_TAIL = 16  # messages that are looked at; the others were, when they were the last
_SYSTEM = -1  # the system prompt's place among messages
_PIECE_BYTES = 1 << 20  # are cleaned at once: takes up to 50 ms
_PROMPT_BYTES = 32_768  # of which the passages are looked at

# What clients put into prompts that no model reads: marks of how far to cache, which move on with
# the conversation, with the list that a text becomes to carry one; and a line for billing.
_MARK, _BILLING = b'"cache_control"', b"x-anthropic-billing-header"
_SPELT = rb'"cache_control"\s{0,8}+:\s{0,8}+\{[^{}]{0,200}+\}'
_MARKS = re.compile(rb",\s{0,8}+" + _SPELT + rb"|" + _SPELT + rb"\s{0,8},?")
_ONE_MARKED_TEXT = re.compile(
    rb'\[\{"type":\s?"text",\s?"text":\s?("[^"\\]*+(?:\\.[^"\\]*+)*+"),\s{0,8}' + _SPELT + rb"\}\]",
    re.DOTALL,
)
_BILLINGS = re.compile(
    rb'\{"type":\s?"text",\s?"text":\s?"x-anthropic-billing-header[^"\\]{0,500}+"\}(?:,\s?)?'
)


class Part(msgspec.Struct, frozen=True):
    text: str = ""
    tool_use_id: str | None = None  # of the tool call that `content` is the result of
    content: msgspec.Raw = msgspec.Raw()


def decode_foreign(
    decoder: "msgspec.json.Decoder[Any]", value: bytes | bytearray | msgspec.Raw
) -> Any:
    """Decode foreign JSON; an unreadable value becomes None."""
    try:
        return decoder.decode(value) if value else None
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def without_marks(spelt: bytes) -> bytes:
    """Return a prompt, or a part of one, without clients' marks for caching and billing.

    A long one is processed in pieces, so that other threads can run; marks across the end of a
    piece stay, and so does everything beyond the longest prompt that is used for inference.
    """
    if _MARK not in spelt and _BILLING not in spelt:
        return spelt
    if len(spelt) <= _PIECE_BYTES:
        return _cleaned(spelt)
    end = min(len(spelt), _MAX_PROMPT_BYTES)
    pieces = [_cleaned(spelt[at : at + _PIECE_BYTES]) for at in range(0, end, _PIECE_BYTES)]
    return b"".join([*pieces, spelt[len(pieces) * _PIECE_BYTES :]])


def _cleaned(spelt: bytes) -> bytes:
    if _MARK in spelt:
        spelt = _MARKS.sub(b"", _ONE_MARKED_TEXT.sub(rb"\1", spelt))
    return _BILLINGS.sub(b"", spelt) if _BILLING in spelt else spelt


class PromptMessage(msgspec.Struct, frozen=True):
    at: int = 0  # its place among all
    is_reply: bool = False  # of the model, as the client gives it back
    text: str = ""
    answers: tuple[str, ...] = ()  # ids of the tool calls that this has the results of


class Prompt(msgspec.Struct, frozen=True):
    """The parts of a request's body that form the prompt, as the client wrote them."""

    messages: msgspec.Raw = msgspec.Raw()
    input: msgspec.Raw = msgspec.Raw()
    prompt: msgspec.Raw = msgspec.Raw()
    instructions: msgspec.Raw = msgspec.Raw()
    system: msgspec.Raw = msgspec.Raw()  # the same, as Anthropic's API has it
    tools: msgspec.Raw = msgspec.Raw()
    previous_response_id: msgspec.Raw = msgspec.Raw()

    @property
    def size_bytes(self) -> int:
        said = len(self.messages) + len(self.input) + len(self.prompt)
        return said + len(self.instructions) + len(self.system) + len(self.tools)


class Conversation:
    """A conversation. Messages are decode_foreign on demand: of a long one few are needed."""

    def __init__(self, prompt: Prompt, raw: Sequence[msgspec.Raw], said_once: str) -> None:
        """Create it. `raw` has all messages; `said_once` is the prompt if it has no messages."""
        self.size_bytes = prompt.size_bytes
        self._prompt = prompt
        self._said_once = said_once
        self._system_contents, first = _leading(raw)
        count = len(self._system_contents)
        spelt = (
            without_marks(bytes(prompt.instructions) + bytes(prompt.system)),
            *map(bytes, raw[:count]),
        )
        self._system_key = hash(spelt)  # of the system prompt, as the client spelt it
        self.raw = raw[count:] if count else raw  # every message behind the system prompt
        self._first = first
        self._keys: Sequence[int] | None = None
        self._parts: dict[int, int] | None = None
        self.last, self.new = self._last_and_new()
        previous = prompt.previous_response_id
        self.previous: str | None = decode_foreign(_text, previous) if previous else None

    def _last_and_new(self) -> tuple[PromptMessage | None, Sequence[PromptMessage]]:
        """Return the last reply in the tail (as the client repeats it), and later messages."""
        if self._said_once:
            return None, [PromptMessage(text=self._said_once)]
        new: list[PromptMessage] = []
        for at in reversed(self._tail_places()):
            message = self._message(at)
            if message is not None and message.is_reply:
                return message, new[::-1]
            if message is not None:
                new.append(message)
        return None, new[::-1]

    def _message(self, at: int) -> PromptMessage | None:
        """Return a message; None if it is unreadable or a system prompt."""
        item = self._first if at == 0 else _read(self.raw[at])
        return None if item is None or item.is_system else _message(at, item)

    def _tail_places(self) -> range:
        return range(max(0, len(self.raw) - _TAIL), len(self.raw))

    def tail(self) -> Sequence[PromptMessage]:
        if self.last is None:
            return self.new
        earlier = (self._message(at) for at in self._tail_places() if at < self.last.at)
        return [*(each for each in earlier if each is not None), self.last, *self.new]

    def system(self) -> str:
        contents = [self._prompt.instructions, self._prompt.system, *self._system_contents]
        return "".join(_text_of(each) for each in contents)

    def tools(self) -> tuple[str, ...]:
        tools = decode_foreign(_tools, self._prompt.tools) or ()
        return tuple(each.function.name or each.name for each in tools)

    def agent_key(self) -> int:
        """Return a hash of system prompt and tools, as the client wrote them."""
        return hash((self._system_key, without_marks(bytes(self._prompt.tools))))

    def keys(self) -> Sequence[int]:
        """Return a hash of each message after the system prompt, as the client wrote it."""
        if self._keys is None:
            spelt: Iterable[bytes] = map(bytes, self.raw)
            if _MARK in bytes(self._prompt.messages):
                spelt = map(without_marks, spelt)
            self._keys = [*map(hash, spelt)]
        return self._keys

    def parts_at(self, places: Iterable[int]) -> dict[int, int]:
        """Return the places of messages by their keys."""
        keys = self.keys() or [hash(("said once", self._said_once))]
        return {keys[place]: place for place in places}

    def parts(self) -> dict[int, int]:
        """Return the places of the system prompt and of whole messages, by their keys.

        Only the first and last messages, up to half of `_PROMPT_BYTES` each.
        """
        if self._parts is not None:
            return self._parts
        is_short = self.size_bytes <= _PROMPT_BYTES  # with all that is beside the messages
        self._parts = self.parts_at(range(len(self.raw) or 1) if is_short else self._ends())
        if self._system_contents or self._prompt.instructions or self._prompt.system:
            self._parts[self._system_key] = _SYSTEM
        return self._parts

    def _ends(self) -> Iterable[int]:
        """Return the places of the messages that are examined."""
        sizes = [*map(len, self.raw)] or [len(self._said_once)]
        if sum(sizes) <= _PROMPT_BYTES:
            return range(len(sizes))
        from_begin, from_end = list(accumulate(sizes)), list(accumulate(reversed(sizes)))
        first = bisect_left(from_begin, _PROMPT_BYTES // 2) + 1
        last = len(sizes) - bisect_left(from_end, _PROMPT_BYTES // 2) - 1
        return chain(range(min(first, last)), range(last, len(sizes)))

    def text_at(self, place: int) -> str:
        if place == _SYSTEM:
            return self.system()
        if not self.raw:
            return self._said_once
        for message in self.new:
            if message.at == place:
                return message.text
        item = _read(self.raw[place])
        return "" if item is None else item.text()


class _Item(msgspec.Struct, frozen=True):
    """A chat message, or an item of the responses API."""

    role: str = ""
    type: str = ""
    content: msgspec.Raw = msgspec.Raw()
    output: msgspec.Raw = msgspec.Raw()
    tool_call_id: str | None = None
    call_id: str | None = None

    @property
    def is_system(self) -> bool:
        return self.role in ("system", "developer")

    def text(self) -> str:
        return _text_of(self.content or self.output).strip()


class _Named(msgspec.Struct, frozen=True):
    name: str = ""


class _Tool(msgspec.Struct, frozen=True):
    function: _Named = _Named()
    name: str = ""


_prompt = msgspec.json.Decoder(Prompt)
_raw_items = msgspec.json.Decoder(list[msgspec.Raw])
_item = msgspec.json.Decoder(_Item)
_contents = msgspec.json.Decoder(str | list[Part])
_tools = msgspec.json.Decoder(list[_Tool])
_text = msgspec.json.Decoder(str)


def prompt_of(content: bytes) -> Prompt:
    """Parse the prompt in a body; an unreadable body has an empty prompt."""
    return decode_foreign(_prompt, content) or Prompt()


def conversation(prompt: Prompt) -> Conversation | None:
    """Return the conversation; None if the prompt is not in words, or very long."""
    if prompt.size_bytes > _MAX_PROMPT_BYTES:
        return None
    raw = decode_foreign(_raw_items, prompt.messages or prompt.input) or []
    if len(raw) > _MAX_MESSAGES:
        return None
    said_once = "" if raw else _text_of(prompt.input or prompt.prompt)
    return Conversation(prompt, raw, said_once) if raw or said_once else None


def _read(message: msgspec.Raw) -> _Item | None:
    item: _Item | None = decode_foreign(_item, message)
    return item


def _leading(raw: Sequence[msgspec.Raw]) -> tuple[list[msgspec.Raw], _Item | None]:
    """Return the contents of the system prompt's messages, and the first message after them."""
    contents: list[msgspec.Raw] = []
    for each in raw:
        item = _read(each)
        if item is None or not item.is_system:
            return contents, item
        contents.append(item.content)
    return contents, None


def _message(at: int, item: _Item) -> PromptMessage:
    is_reply = item.role == "assistant" or item.type == "function_call"
    said = decode_foreign(_contents, item.content or item.output)
    answers = [item.tool_call_id]
    if item.type == "function_call_output":
        answers.append(item.call_id)
    if said and not isinstance(said, str):
        answers += [part.tool_use_id for part in said]
    ids = tuple(each for each in answers if each)
    return PromptMessage(at, is_reply, _text_in(said).strip(), ids)


def _text_of(value: msgspec.Raw) -> str:
    """Return a text, or the text of its parts, including results of tools."""
    return _text_in(decode_foreign(_contents, value))


def _text_in(said: str | list[Part] | None) -> str:
    if said is None or isinstance(said, str):
        return said or ""
    return "".join(part.text or _result_of(part) for part in said)


def _result_of(part: Part) -> str:
    """Return the text of a tool's result, which may have parts of its own."""
    said = decode_foreign(_contents, part.content) if part.content else None
    return said if isinstance(said, str) else "".join(each.text for each in said or ())
