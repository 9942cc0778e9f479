"""Checks of a body's structure that every engine needs: text, depth, messages, tools, prompts.

Engines fail in different ways at malformed bodies, so they are checked here: by `reading.c`, which
creates no objects, or by msgspec where that is not compiled. Both reject the same bodies with the
same messages. Not in the paper.
"""

import ctypes
import re
from typing import Annotated, Any

import msgspec

from kairos.core import InvalidRequest
from kairos.request import parameters
from kairos.request.native import READING, Judged, Reading
from kairos.request.parameters import (
    A_NUMBER,
    MAX_DEPTH,
    MAX_MEDIA,
    MAX_MESSAGES,
    MAX_PARTS,
    MAX_SEQUENCES,
    MAX_TOOLS,
    OUTSIDE,
    TOO_LONG,
    TokenId,
    beginning,
    wrong,
)

_TEXTS_TOO, _MESSAGES, _NEEDS_ROLE = 1, 2, 4  # as `reading.c` has them
_RIGHT, _WRONG_ITEM, _NO_ROLE, _WRONG_ROLE, _WRONG_CONTENT, _WRONG_PART = range(6)
_ONE_KIND = {0, 1, 2, 4}  # of prompts: each kind has a bit
_NUMBER_BYTES = 400  # of a number that is looked at, to say what it is
_OF_IDS = re.compile(rb"\[\s*[^\s\"{]")
_BRACKETS = re.compile(rb'"(?:[^"\\]|\\.)*"|[\[{]|[\]}]', re.DOTALL)
_TEXTS = {
    b'"text"',
    b'"input_text"',
    b'"output_text"',
    b'"refusal"',
    b'"reasoning_text"',
    b'"summary_text"',
}


class _Part(msgspec.Struct):
    type: msgspec.Raw = msgspec.Raw()


class _Item(msgspec.Struct):
    """An item of the responses API, which may lack a role."""

    role: str | None = None
    content: str | list[str | _Part] | None = None


class _Message(msgspec.Struct):
    role: str
    content: str | list[str | _Part] | None = None


class _Tool(msgspec.Struct):
    pass


_messages = msgspec.json.Decoder(Annotated[list[_Message], msgspec.Meta(max_length=MAX_MESSAGES)])
_tools = msgspec.json.Decoder(Annotated[list[_Tool], msgspec.Meta(max_length=MAX_TOOLS)])
_items = msgspec.json.Decoder(Annotated[list[str | _Item], msgspec.Meta(max_length=MAX_MESSAGES)])
_prompts = msgspec.json.Decoder(list[str | TokenId | list[TokenId]])


def check_text(content: bytes, compiled: Reading | None = READING) -> None:
    """Check encoding and nesting of an otherwise well-formed body.

    Raises:
        InvalidRequest: It is not UTF-8, or nested too deeply.
    """
    if not content.isascii():
        check_utf8(content, compiled)
    if depth(content, compiled) > MAX_DEPTH:
        raise too_deep()


def check_utf8(content: bytes, compiled: Reading | None) -> None:
    """Check an encoding. Raises InvalidRequest: It is not UTF-8."""
    if compiled is None or not compiled.is_utf8(content, len(content)):
        try:
            content.decode()
        except UnicodeDecodeError as error:
            raise not_utf8(error) from None


def not_utf8(error: UnicodeDecodeError) -> InvalidRequest:
    return InvalidRequest(f"the body cannot be read: it is not UTF-8 ({error.reason})")


def too_deep() -> InvalidRequest:
    return InvalidRequest(
        "the body cannot be read: it is nested too deeply: at most "
        f"{MAX_DEPTH} lists and objects may be within each other"
    )


def depth(content: bytes, compiled: Reading | None = READING) -> int:
    """Return the maximum nesting of lists and objects."""
    if compiled is not None:
        return int(compiled.depth(content, len(content)))
    if content.count(b"[") + content.count(b"{") <= MAX_DEPTH:
        return 0  # it is not worth it to look
    now = deepest = 0
    for found in _BRACKETS.finditer(content):
        first = content[found.start()]
        if first != ord('"'):
            now += 1 if first in b"[{" else -1
            deepest = max(deepest, now)
    return deepest


def check_messages(messages: bytes, compiled: Reading | None = READING) -> None:
    """Check the messages. Raises InvalidRequest: They are malformed."""
    if compiled is None:
        _check_parts(_decoded(_messages, messages, "messages"), "messages")
    else:
        _judge_items(messages, "messages", _MESSAGES | _NEEDS_ROLE, MAX_MESSAGES, compiled)


def check_tools(tools: bytes, compiled: Reading | None = READING) -> None:
    """Check the tools. Raises InvalidRequest: They are malformed."""
    if compiled is None:
        _decoded(_tools, tools, "tools")
    else:
        _judge_items(tools, "tools", 0, MAX_TOOLS, compiled)


def check_input(content: bytes, compiled: Reading | None = READING) -> None:
    """Check an input: a text, items of a response, or texts to embed.

    Raises:
        InvalidRequest: It is malformed.
    """
    if content[:1] != b"[":
        if content[:1] != b'"':
            raise wrong("input", beginning(content))
    elif _OF_IDS.match(content):
        _check_prompts(content, "input", 1, compiled)
    elif compiled is None:
        _check_parts(_decoded(_items, content, "input"), "input")
    else:
        _judge_items(content, "input", _TEXTS_TOO | _MESSAGES, MAX_MESSAGES, compiled)


def check_prompt(prompt: bytes, choices: int, compiled: Reading | None = READING) -> int:
    """Return the number of prompts of a completion, with `choices` answers to each.

    Raises:
        InvalidRequest: The prompts are malformed, or too many.
    """
    if prompt[:1] == b"[":
        return _check_prompts(prompt, "prompt", choices, compiled)
    if prompt[:1] != b'"':
        raise wrong("prompt", beginning(prompt))
    return 1


def _judge_items(value: bytes, name: str, rules: int, most: int, compiled: Reading) -> None:
    """Check a list of items. Raises InvalidRequest: An item is malformed, or there are too many."""
    if value[:1] != b"[":
        raise wrong(name, beginning(value))
    found = Judged()
    code = compiled.judge_items(value, len(value), rules, ctypes.addressof(found))
    if code != _RIGHT:
        raise _wrong_at(value, name, code, found)
    if found.items > most:
        raise wrong(name, TOO_LONG)
    _check_counts(found.parts, found.media, name)


def _wrong_at(value: bytes, name: str, code: int, found: Judged) -> InvalidRequest:
    """Return the error for the verdict of `reading.c`."""
    item = f"{name}[{found.item}]"
    if code == _NO_ROLE:
        return wrong(f"{item}.role", "missing")
    if code == _WRONG_PART:
        item += f".content[{found.part}]"
    elif code != _WRONG_ITEM:
        item += ".role" if code == _WRONG_ROLE else ".content"
    return wrong(item, beginning(value[found.place : found.place + _NUMBER_BYTES]))


def _decoded(decoder: msgspec.json.Decoder[Any], value: bytes, name: str) -> Any:
    try:
        return decoder.decode(value)
    except msgspec.ValidationError as error:
        raise parameters.told(error, name) from None


def _check_parts(items: list[str | _Item] | list[_Message], name: str) -> None:
    parts = media = 0
    for item in items:
        if isinstance(item, str) or not isinstance(item.content, list):
            continue
        parts += len(item.content)
        kinds = (bytes(each.type) for each in item.content if isinstance(each, _Part))
        media += sum(kind not in _TEXTS for kind in kinds)
    _check_counts(parts, media, name)


def _check_counts(parts: int, media: int, name: str) -> None:
    """Check the numbers of parts and media. Raises InvalidRequest: There are too many."""
    if parts > MAX_PARTS:
        raise InvalidRequest(f"'{name}' has {parts} parts; at most {MAX_PARTS} are allowed", name)
    if media > MAX_MEDIA:
        raise InvalidRequest(
            f"'{name}' has {media} images and other media; at most {MAX_MEDIA} are allowed", name
        )


def _check_prompts(prompt: bytes, name: str, choices: int, compiled: Reading | None) -> int:
    most = MAX_SEQUENCES // choices
    if compiled is not None and compiled.is_token_ids(prompt, len(prompt), most):
        return max(1, prompt.count(b"[") - 1)
    count, is_of_one_kind = _count_prompts(prompt, name, compiled)
    if not is_of_one_kind:
        raise InvalidRequest(
            f"'{name}' must have strings alone, or token ids, or lists of them", name
        )
    if count * choices > MAX_SEQUENCES:
        raise InvalidRequest(
            f"'{name}' has {count} prompts, and with {choices} answers to each the call would be "
            f"more than {MAX_SEQUENCES}",
            name,
        )
    return max(1, count)


def _count_prompts(prompt: bytes, name: str, compiled: Reading | None) -> tuple[int, bool]:
    """Return the number of texts and lists of ids, and whether all prompts are of one kind.

    Raises:
        InvalidRequest: A prompt is neither of these, nor a token id.
    """
    if compiled is None:
        prompts = _decoded(_prompts, prompt, name)
        kinds = {type(each) for each in prompts}
        return sum(not isinstance(each, int) for each in prompts), len(kinds) <= 1
    found = Judged()
    code = compiled.judge_prompts(prompt, len(prompt), ctypes.addressof(found))
    if code != _RIGHT:
        at = f"{name}[{found.item}]" + (f"[{found.part}]" if code == _WRONG_PART else "")
        was = beginning(prompt[found.place : found.place + _NUMBER_BYTES])
        raise wrong(at, OUTSIDE if was == A_NUMBER else was)
    return found.items, found.parts in _ONE_KIND
