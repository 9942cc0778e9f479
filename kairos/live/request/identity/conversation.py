"""A request's prompt, and an engine's answer, as far as they tell what has to do with what.

Of the three APIs: chat completions, responses, completions. What is of another form than these have
is as good as not there: the engine says so.
"""

import re
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import accumulate, chain, takewhile
from typing import Any

import msgspec

_MAX_PROMPT_BYTES = 4 << 20  # of a longer one, and of more messages, nothing is inferred
_MAX_MESSAGES = 4096
_TAIL = 16  # messages that are looked at; the others were, when they were the last
_SYSTEM = -1  # the system prompt's place among messages
_PROMPT_BYTES = 32_768  # of which the passages are looked at
MAX_ANSWER_BYTES = 1 << 18  # a longer one is not read
# An event with a piece of the answer, and the beginning of one like it. Quotes and line breaks are
# escaped within strings of JSON, so what is between two pieces is found as bytes.
_TWO_PIECES = re.compile(
    rb'^(data:[^\n]{0,1000}?"(?:content|text|arguments)":")'
    rb'(?:[^"\\\n]++|\\.)++("[^\n]{0,1000}\n\r?\n)\1',
    re.MULTILINE,
)
_STRINGS = re.compile(rb'(?:[^"\\]++|\\[^\n])*+')  # without their quotes, a line each
_DECODING = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


class PromptMessage(msgspec.Struct, frozen=True):
    at: int = 0  # its place among all
    is_reply: bool = False  # of the model, as the client gives it back
    text: str = ""
    answers: str | None = None  # id of the tool call of which this is the result


class Prompt(msgspec.Struct, frozen=True):
    """What a request's body has of a prompt, each part as the client spelt it."""

    messages: msgspec.Raw = msgspec.Raw()
    input: msgspec.Raw = msgspec.Raw()
    prompt: msgspec.Raw = msgspec.Raw()
    instructions: msgspec.Raw = msgspec.Raw()
    tools: msgspec.Raw = msgspec.Raw()
    previous_response_id: msgspec.Raw = msgspec.Raw()

    @property
    def size_bytes(self) -> int:
        said = len(self.messages) + len(self.input) + len(self.prompt)
        return said + len(self.instructions) + len(self.tools)


class Conversation:
    """A message is decoded only when it is asked for: of a long conversation few are."""

    def __init__(self, prompt: Prompt, raw: Sequence[msgspec.Raw], said_once: str) -> None:
        """`raw`: every message; `said_once`: the prompt, where there are none."""
        self.size_bytes = prompt.size_bytes
        self._prompt = prompt
        self._said_once = said_once
        leading = [item for item in takewhile(_is_system, map(_read, raw)) if item is not None]
        self._leading = raw[: len(leading)]
        self._system_contents = [item.content for item in leading]
        self.raw = raw[len(leading) :]  # every message behind the system prompt
        self._keys: Sequence[int] | None = None
        self._parts: dict[int, int] | None = None
        self.last, self.new = self._last_and_new()
        self.previous: str | None = _decoded(_text, prompt.previous_response_id)

    def _last_and_new(self) -> tuple[PromptMessage | None, Sequence[PromptMessage]]:
        """The last reply in the tail, that the client gives back; and what came after it."""
        if self._said_once:
            return None, [PromptMessage(text=self._said_once)]
        new: list[PromptMessage] = []
        for at in reversed(self._tail_places()):
            message = _message(at, self.raw[at])
            if message is not None and message.is_reply:
                return message, new[::-1]
            if message is not None:
                new.append(message)
        return None, new[::-1]

    def _tail_places(self) -> range:
        return range(max(0, len(self.raw) - _TAIL), len(self.raw))

    def tail(self) -> Sequence[PromptMessage]:
        """The last messages."""
        if self.last is None:
            return self.new
        earlier = (_message(at, self.raw[at]) for at in self._tail_places() if at < self.last.at)
        return [*(each for each in earlier if each is not None), self.last, *self.new]

    def system(self) -> str:
        """The system prompt."""
        contents = [self._prompt.instructions, *self._system_contents]
        return "".join(_text_of(each) for each in contents)

    def tools(self) -> tuple[str, ...]:
        """Their names."""
        return _tool_names(self._prompt.tools)

    def agent_key(self) -> int:
        """A hash of system prompt and tools, as the client spelt them."""
        parts = (self._prompt.instructions, self._prompt.tools, *self._leading)
        return hash(tuple(map(bytes, parts)))

    def keys(self) -> Sequence[int]:
        """A hash of each message behind the system prompt, as the client spelt it."""
        if self._keys is None:
            self._keys = [hash(bytes(each)) for each in self.raw]
        return self._keys

    def parts_at(self, places: Iterable[int]) -> dict[int, int]:
        """By their keys, places of messages."""
        keys = self.keys() or [hash(("said once", self._said_once))]
        return {keys[place]: place for place in places}

    def parts(self) -> dict[int, int]:
        """The same of the system prompt and of whole messages: of the first and of the last of
        them, until each make half of `_PROMPT_BYTES`, as they were spelt."""
        if self._parts is not None:
            return self._parts
        sizes = [len(each) for each in self.raw] or [len(self._said_once)]
        every: Iterable[int] = range(len(sizes))
        if sum(sizes) > _PROMPT_BYTES:
            from_begin, from_end = list(accumulate(sizes)), list(accumulate(reversed(sizes)))
            first = bisect_left(from_begin, _PROMPT_BYTES // 2) + 1
            last = len(sizes) - bisect_left(from_end, _PROMPT_BYTES // 2) - 1
            every = chain(range(min(first, last)), range(last, len(sizes)))
        spelt = (self._prompt.instructions, *self._leading)
        self._parts = {hash(tuple(map(bytes, spelt))): _SYSTEM} | self.parts_at(every)
        return self._parts

    def text_at(self, place: int) -> str:
        if place == _SYSTEM:
            return self.system()
        if not self.raw:
            return self._said_once
        item = _read(self.raw[place])
        return "" if item is None else _text_of(item.content or item.output).strip()


class Reply(msgspec.Struct, frozen=True):
    text: str
    ids: tuple[str, ...] = ()  # of its tool calls, and its own where another can go on from it
    handed: tuple[str, ...] = ()  # texts among the arguments of its tool calls


class _Function(msgspec.Struct, frozen=True):
    arguments: str = ""


class _Call(msgspec.Struct, frozen=True):
    index: int = 0
    id: str | None = None
    function: _Function = _Function()


class _Item(msgspec.Struct, frozen=True):
    """A chat message, or an item of the responses API."""

    role: str = ""
    type: str = ""
    content: msgspec.Raw = msgspec.Raw()
    output: msgspec.Raw = msgspec.Raw()
    tool_call_id: str | None = None
    call_id: str | None = None


class _Part(msgspec.Struct, frozen=True):
    text: str = ""


class _Named(msgspec.Struct, frozen=True):
    name: str = ""


class _Tool(msgspec.Struct, frozen=True):
    function: _Named = _Named()
    name: str = ""


_prompt = msgspec.json.Decoder(Prompt)
_raw_items = msgspec.json.Decoder(list[msgspec.Raw])
_item = msgspec.json.Decoder(_Item)
_parts = msgspec.json.Decoder(list[_Part])
_tools = msgspec.json.Decoder(list[_Tool])
_text = msgspec.json.Decoder(str)
_arguments = msgspec.json.Decoder(dict[str, Any])


def prompt_of(content: bytes) -> Prompt:
    """Of a body by itself; one that cannot be read has no prompt."""
    return _decoded(_prompt, content) or Prompt()


def conversation(prompt: Prompt) -> Conversation | None:
    """None: it is no prompt in words, or a very long one."""
    if prompt.size_bytes > _MAX_PROMPT_BYTES:
        return None
    raw = _decoded(_raw_items, prompt.messages or prompt.input) or []
    if len(raw) > _MAX_MESSAGES:
        return None
    said_once = "" if raw else _text_of(prompt.input or prompt.prompt)
    return Conversation(prompt, raw, said_once) if raw or said_once else None


def _read(message: msgspec.Raw) -> _Item | None:
    item: _Item | None = _decoded(_item, message)
    return item


def _is_system(item: _Item | None) -> bool:
    return item is not None and item.role in ("system", "developer")


def _message(at: int, raw: msgspec.Raw) -> PromptMessage | None:
    """None: it cannot be read, or is no part of what was said by turns."""
    item = _read(raw)
    if item is None or _is_system(item):
        return None
    answers = item.tool_call_id or (item.type == "function_call_output" and item.call_id) or None
    is_reply = item.role == "assistant" or item.type == "function_call"
    return PromptMessage(at, is_reply, _text_of(item.content or item.output).strip(), answers)


def _text_of(value: msgspec.Raw) -> str:
    """Of a text, or of parts that have some."""
    if bytes(memoryview(value)[:1]) == b'"':
        return _decoded(_text, value) or ""
    return "".join(part.text for part in _decoded(_parts, value) or ())


def _tool_names(value: msgspec.Raw) -> tuple[str, ...]:
    return tuple(each.function.name or each.name for each in _decoded(_tools, value) or ())


def _decoded(decoder: "msgspec.json.Decoder[Any]", value: bytes | bytearray | msgspec.Raw) -> Any:
    try:
        return decoder.decode(value) if value else None
    except _DECODING:
        return None


class _Delta(msgspec.Struct, frozen=True):
    """Of a chat message, whole or in part."""

    content: str | None = None
    tool_calls: list[_Call] | None = None


class _Choice(msgspec.Struct, frozen=True):
    message: _Delta | None = None
    delta: _Delta | None = None
    text: str | None = None


class _Output(msgspec.Struct, frozen=True):
    content: list[_Part] | None = None
    call_id: str | None = None
    arguments: str = ""


class _Answer(msgspec.Struct, frozen=True):
    id: str | None = None
    choices: list[_Choice] | None = None
    output: list[_Output] | None = None
    response: "_Answer | None" = None  # the responses API's last event has it whole


_answer = msgspec.json.Decoder(_Answer)


def reply_of(answer: bytes | bytearray, *, streamed: bool) -> Reply | None:
    """Of an engine's answer; `streamed`: as server-sent events."""
    if not 0 < len(answer) <= MAX_ANSWER_BYTES:
        return None
    pieces: list[bytes] | list[bytes | bytearray] = [answer]
    if streamed:
        lines = _merged(bytes(answer)).splitlines()
        pieces = [line[5:] for line in lines if line.startswith(b"data:")]
    read = [_decoded(_answer, piece) for piece in pieces]
    return _together([each for each in read if each is not None])


def _merged(stream: bytes) -> bytes:
    """With one event for those in a row that differ in nothing but a piece of the answer: decoding
    hundreds takes longer than all else that is done for a call."""
    found = _TWO_PIECES.search(stream)
    if found is None:
        return stream
    begins = found.end(1)
    *pieces, rest = stream[begins:].split(found[2] + found[1])
    together = b"\n".join(pieces)
    if together.count(b"\n") >= len(pieces) or not _STRINGS.fullmatch(together):
        return stream  # what looks like the end of such an event is that of another
    return b"".join([stream[:begins], *pieces, rest])


def _together(answers: Sequence[_Answer]) -> Reply:
    """The first choice's: of several, the client keeps one."""
    text: list[str] = []
    ids: list[str] = []
    arguments: dict[int, str] = {}  # by place among the tool calls
    for answer in answers:
        whole = answer.response or answer
        for place, each in enumerate(whole.output or ()):
            text += [part.text for part in each.content or ()]
            arguments[place] = each.arguments
            ids += [each.call_id] if each.call_id else []
        if whole.output and whole.id:
            ids.append(whole.id)
        for choice in (answer.choices or ())[:1]:
            said = choice.message or choice.delta or _Delta(choice.text)
            text.append(said.content or "")
            for place, call in enumerate(said.tool_calls or ()):
                at = max(place, call.index)  # pieces of a stream count them; a whole does not
                arguments[at] = arguments.get(at, "") + call.function.arguments
                ids += [call.id] if call.id else []
    handed = (text for each in arguments.values() for text in _texts_in(each))
    return Reply("".join(text).strip(), tuple(dict.fromkeys(ids)), tuple(handed))


def _texts_in(arguments: str) -> list[str]:
    read = _decoded(_arguments, arguments.encode("utf-8", "replace"))
    return [each.strip() for each in (read or {}).values() if isinstance(each, str)]
