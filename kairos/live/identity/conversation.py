"""A request's prompt, and an engine's answer, as far as they tell what has to do with what.

Of the three APIs: chat completions, responses, completions. What is of another form than these have
is as good as not there: the engine says so.
"""

from collections.abc import Iterator, Sequence
from itertools import takewhile
from typing import Any

import msgspec

_MAX_BODY_BYTES = 4 << 20  # of a longer one, and of more messages, nothing is inferred
_MAX_MESSAGES = 4096
_TAIL = 16  # messages that are looked at; the others were, when they were the last
MAX_ANSWER_BYTES = 1 << 18  # a longer one is not read
_DECODING = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


class Message(msgspec.Struct, frozen=True):
    at: int = 0  # its place among all
    is_reply: bool = False  # of the model, as the client gives it back
    text: str = ""
    answers: str | None = None  # id of the tool call of which this is the result


class Conversation(msgspec.Struct, frozen=True):
    system: str  # prompt
    tools: tuple[str, ...]  # names
    raw: Sequence[msgspec.Raw]  # every message behind the system prompt, as the client spelt it
    tail: Sequence[Message]  # the last of them
    last: Message | None  # reply among these, that the client gives back
    new: Sequence[Message]  # what came after that
    previous: str | None  # id of the answer that it goes on from


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


class _Prompt(msgspec.Struct, frozen=True):
    messages: msgspec.Raw = msgspec.Raw()
    input: msgspec.Raw = msgspec.Raw()
    prompt: msgspec.Raw = msgspec.Raw()
    instructions: msgspec.Raw = msgspec.Raw()
    tools: msgspec.Raw = msgspec.Raw()
    previous_response_id: msgspec.Raw = msgspec.Raw()


_prompt = msgspec.json.Decoder(_Prompt)
_raw_items = msgspec.json.Decoder(list[msgspec.Raw])
_item = msgspec.json.Decoder(_Item)
_parts = msgspec.json.Decoder(list[_Part])
_tools = msgspec.json.Decoder(list[_Tool])
_text = msgspec.json.Decoder(str)
_arguments = msgspec.json.Decoder(dict[str, Any])


def conversation(content: bytes) -> Conversation | None:
    """Of a request's body; None: it has no prompt in words, or a very long one."""
    prompt = _decoded(_prompt, content) if len(content) <= _MAX_BODY_BYTES else None
    if prompt is None:
        return None
    raw = _decoded(_raw_items, prompt.messages or prompt.input) or []
    if len(raw) > _MAX_MESSAGES:
        return None
    said_once = "" if raw else _text_of(prompt.input or prompt.prompt)
    if not (raw or said_once):
        return None
    system = _text_of(prompt.instructions)
    leading = [item for item in takewhile(_is_system, map(_read, raw)) if item is not None]
    system += "".join(_text_of(item.content) for item in leading)
    raw = raw[len(leading) :]
    last = range(max(0, len(raw) - _TAIL), len(raw))
    items = [(at, _read(raw[at])) for at in last]
    tail = [_message(at, item) for at, item in items if item and not _is_system(item)]
    if said_once:
        tail = [Message(text=said_once)]
    reply = next((message for message in reversed(tail) if message.is_reply), None)
    return Conversation(
        system=system,
        tools=_tool_names(prompt.tools),
        raw=raw,
        tail=tail,
        last=reply,
        new=tail if reply is None else [each for each in tail if each.at > reply.at],
        previous=_decoded(_text, prompt.previous_response_id),
    )


def _read(message: msgspec.Raw) -> _Item | None:
    item: _Item | None = _decoded(_item, message)
    return item


def _is_system(item: _Item | None) -> bool:
    return item is not None and item.role in ("system", "developer")


def _message(at: int, item: _Item) -> Message:
    answers = item.tool_call_id or (item.type == "function_call_output" and item.call_id) or None
    is_reply = item.role == "assistant" or item.type == "function_call"
    return Message(at, is_reply, _text_of(item.content or item.output).strip(), answers)


def texts(talk: Conversation) -> Iterator[str]:
    """All that was said in it."""
    yield talk.system
    if not talk.raw:
        yield from (message.text for message in talk.tail)
    for each in talk.raw:
        if (item := _read(each)) is not None:
            yield _text_of(item.content or item.output)


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
        pieces = [line[5:] for line in bytes(answer).splitlines() if line.startswith(b"data:")]
    read = [_decoded(_answer, piece) for piece in pieces]
    return _together([each for each in read if each is not None])


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
