"""What Kairos must know of a request's body, and the one change that it ever makes to one."""

import re

import msgspec

from kairos.errors import InvalidRequest
from kairos.model import EXPECTED_COMPLETION_TOKENS

BYTES_PER_TOKEN = 4  # of English text under a 32k-128k vocabulary, on average; the engine counts

# Images come as data URLs, sound as the base64 `data` of an `input_audio` part.
_MEDIA = re.compile(
    rb'"data:[a-z]+\\?/[^"]*;base64,[^"]*"|"data"\s*:\s*"(?:[A-Za-z0-9+/=]|\\/){1024,}"'
)
_STREAM_OPTIONS = re.compile(rb'"stream_options"\s*:\s*')
_JSON_START = re.compile(rb"\s*\{")


class _Body(msgspec.Struct):
    model: str | None = None
    stream: bool | None = None
    stream_options: msgspec.Raw = msgspec.Raw()
    max_tokens: int | float | None = None  # 100.0 is fine with vLLM
    max_completion_tokens: int | float | None = None
    max_output_tokens: int | float | None = None
    messages: msgspec.Raw = msgspec.Raw()


class Body(msgspec.Struct):
    """`content` is what goes to the engine: the client's bytes, but for the splice below."""

    content: bytes
    model: str | None = None
    stream: bool = False
    usage_added: bool = False  # the client did not ask for the usage chunk that will come
    prompt_tokens: int = 1  # estimated
    completion_tokens: int = 1  # expected


_decoder = msgspec.json.Decoder(_Body)
_stream_options = msgspec.json.Decoder(dict[str, msgspec.Raw] | None)


def read_body(content: bytes, *, chat: bool, streams_usage: bool) -> Body:
    """Read what routing needs, in one pass that skips everything else.

    Args:
        chat: `messages` must be there.
        streams_usage: the route tells usage at the end of a stream when `stream_options` asks.

    Raises:
        InvalidRequest: not JSON, or a field of the wrong type.
    """
    try:
        body = _decoder.decode(content)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"the body cannot be read: {error}") from None
    except RecursionError:
        raise InvalidRequest("the body cannot be read: it is nested too deeply") from None
    if chat and not bytes(body.messages).startswith(b"["):
        raise InvalidRequest("'messages' must be a list of messages")
    limits = (body.max_completion_tokens, body.max_tokens, body.max_output_tokens)
    limit = next((tokens for tokens in limits if tokens is not None), EXPECTED_COMPLETION_TOKENS)
    read = Body(
        content=content,
        model=body.model,
        stream=bool(body.stream),
        prompt_tokens=_prompt_tokens(content),
        completion_tokens=max(1, min(int(limit), EXPECTED_COMPLETION_TOKENS)),
    )
    if streams_usage and body.stream:
        spliced = _ask_for_usage(content, bytes(body.stream_options))
        if spliced is not None:
            read.content, read.usage_added = spliced, True
    return read


def _prompt_tokens(content: bytes) -> int:
    """Estimate from size. Images and sound in the body are bytes, but not text."""
    size = len(content)
    if b";base64," in content or b'"data"' in content:
        size -= sum(media.end() - media.start() for media in _MEDIA.finditer(content))
    return max(1, size // BYTES_PER_TOKEN)


def _ask_for_usage(content: bytes, options: bytes) -> bytes | None:
    """The body with `stream_options.include_usage` set, every other byte as it was.

    None where nothing is to be changed: the client asks for usage itself, or `stream_options`
    appears more than once or spelt with escapes, so that the one to change cannot be told without
    reading everything.
    """
    if not options:
        start = _JSON_START.match(content)
        assert start is not None, "decoded as an object"
        at = start.end()
        return content[:at] + b'"stream_options":{"include_usage":true},' + content[at:]
    places = list(_STREAM_OPTIONS.finditer(content))
    if len(places) != 1 or not content.startswith(options, places[0].end()):
        return None
    try:
        asked = _stream_options.decode(options) or {}
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None  # not an object, or not text: the engine says so
    if bytes(asked.get("include_usage", b"")) == b"true":
        return None
    asked["include_usage"] = msgspec.Raw(b"true")
    at = places[0].end()
    return content[:at] + msgspec.json.encode(asked) + content[at + len(options) :]
