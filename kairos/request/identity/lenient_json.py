"""Lenient decoding of foreign JSON: unreadable values become None."""

from typing import Any

import msgspec

_DECODING = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


class Part(msgspec.Struct, frozen=True):
    text: str = ""
    tool_use_id: str | None = None  # of the tool call that `content` is the result of
    content: msgspec.Raw = msgspec.Raw()


def decoded(decoder: "msgspec.json.Decoder[Any]", value: bytes | bytearray | msgspec.Raw) -> Any:
    try:
        return decoder.decode(value) if value else None
    except _DECODING:
        return None
