"""Engines' answers parsed for identity inference."""

import re
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from kairos.request.identity.conversation import Part, decode_foreign

MAX_ANSWER_BYTES = 1 << 18  # a longer one is not read
# An event with a piece of the answer, and the beginning of one like it. Quotes and line breaks are
# escaped within strings of JSON, so what is between two pieces is found as bytes.
_TWO_PIECES = re.compile(
    rb'^(data:[^\n]{0,1000}?"(?:content|text|arguments)":")'
    rb'(?:[^"\\\n]++|\\.)++("[^\n]{0,1000}\n\r?\n)\1',
    re.MULTILINE,
)
_STRINGS = re.compile(rb'(?:[^"\\]++|\\[^\n])*+')  # without their quotes, a line each
_arguments = msgspec.json.Decoder(dict[str, Any])


class _Function(msgspec.Struct, frozen=True):
    arguments: str = ""


class _Call(msgspec.Struct, frozen=True):
    index: int = 0
    id: str | None = None
    function: _Function = _Function()


def _texts_in(arguments: str) -> list[str]:
    read = decode_foreign(_arguments, arguments.encode("utf-8", "replace"))
    return [each.strip() for each in (read or {}).values() if isinstance(each, str)]


class Reply(msgspec.Struct, frozen=True):
    text: str
    ids: tuple[str, ...] = ()  # of its tool calls, and its own where another can go on from it
    handed: tuple[str, ...] = ()  # texts among the arguments of its tool calls


class _Delta(msgspec.Struct, frozen=True):
    """A chat message, whole or as a part of a stream."""

    content: str | None = None
    tool_calls: list[_Call] | None = None


class _Choice(msgspec.Struct, frozen=True):
    message: _Delta | None = None
    delta: _Delta | None = None
    text: str | None = None


class _Output(msgspec.Struct, frozen=True):
    content: list[Part] | None = None
    call_id: str | None = None
    arguments: str = ""


class _Block(msgspec.Struct, frozen=True):
    """A block of a message in Anthropic's API, or a part of one in a stream."""

    text: str = ""
    id: str | None = None  # of a tool call
    input: msgspec.Raw = msgspec.Raw()
    partial_json: str = ""


class _Answer(msgspec.Struct, frozen=True):
    id: str | None = None
    choices: list[_Choice] | None = None
    output: list[_Output] | None = None
    response: "_Answer | None" = None  # the responses API's last event has it whole
    content: msgspec.Raw = msgspec.Raw()  # of a message: its blocks
    content_block: _Block | None = None  # begins, in a stream
    delta: msgspec.Raw = msgspec.Raw()  # goes on, there; the responses API has texts here
    index: int = 0


_answer = msgspec.json.Decoder(_Answer)
_block, _whole = msgspec.json.Decoder(_Block), msgspec.json.Decoder(list[_Block])


def reply_of(answer: bytes | bytearray, *, streamed: bool) -> Reply | None:
    """Parse an engine's answer. `streamed`: as server-sent events."""
    if not 0 < len(answer) <= MAX_ANSWER_BYTES:
        return None
    if not streamed:
        whole = decode_foreign(_answer, answer)
        return Reply("") if whole is None else _only_text(whole) or _together([whole])
    lines = _merged(bytes(answer)).splitlines()
    read = [decode_foreign(_answer, line[5:]) for line in lines if line.startswith(b"data:")]
    return _together([each for each in read if each is not None])


def _only_text(answer: _Answer) -> Reply | None:
    """Return the reply of an answer that is only a chat message; None if it has more."""
    if answer.choices and not answer.output and answer.response is None:
        said = answer.choices[0].message
        if said is not None and not said.tool_calls:
            return Reply((said.content or "").strip())
    return None


def _merged(stream: bytes) -> bytes:
    """Merge consecutive events that differ only in their text.

    To decode hundreds of events would take longer than all other work on a call.
    """
    found = _TWO_PIECES.search(stream)
    if found is None:
        return stream
    begins = found.end(1)
    *pieces, rest = stream[begins:].split(found[2] + found[1])
    together = b"\n".join(pieces)
    if together.count(b"\n") >= len(pieces) or not _STRINGS.fullmatch(together):
        return stream  # what looks like the end of such an event is that of another
    return b"".join([stream[:begins], *pieces, rest])


def _blocks(answer: _Answer) -> Iterable[tuple[int, _Block]]:
    """Return the blocks of a message, or the part of one in an event, with their places."""
    if answer.content:
        return enumerate(decode_foreign(_whole, answer.content) or ())
    if answer.content_block is not None:
        return [(answer.index, answer.content_block)]
    if answer.delta:
        return [(answer.index, decode_foreign(_block, answer.delta) or _Block())]
    return ()


def _together(answers: Sequence[_Answer]) -> Reply:
    """Return the reply of the first choice: of several, the client keeps one."""
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
        for place, block in _blocks(answer):
            text.append(block.text)
            ids += [block.id] if block.id else []
            if block.partial_json or block.input:
                given = bytes(block.input).decode() if block.input else ""
                given = "" if given == "{}" else given  # a stream has it in pieces
                arguments[place] = arguments.get(place, "") + given + block.partial_json
        for choice in (answer.choices or ())[:1]:
            said = choice.message or choice.delta or _Delta(choice.text)
            text.append(said.content or "")
            for place, call in enumerate(said.tool_calls or ()):
                at = max(place, call.index)  # pieces of a stream count them; a whole does not
                arguments[at] = arguments.get(at, "") + call.function.arguments
                ids += [call.id] if call.id else []
    handed = (text for each in arguments.values() for text in _texts_in(each))
    return Reply("".join(text).strip(), tuple(dict.fromkeys(ids)), tuple(handed))
