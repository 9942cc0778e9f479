"""Parsing of a request's body: the fields that Kairos uses, and its few changes to the body.

Prompts with a common prefix are recognised by hashes of their prefixes (`hash_prefix`). vLLM's
prefix cache covers what two prompts share from their first token on. Kairos has no tokens, but
bytes: one unit is four of them. Marks and their purpose are documented in `model.py`. Not in the
paper.
"""

import ctypes
import math
import re
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from hashlib import blake2b, sha256
from itertools import islice
from typing import Any

import msgspec

from kairos.core import (
    BYTES_PER_TOKEN,
    EXPECTED_COMPLETION_TOKENS,
    PREFIX_MARKS,
    InvalidRequest,
    ModelNotFound,
)
from kairos.request.identity.aliases import BODY_FIELDS
from kairos.request.identity.conversation import Prompt, decode_foreign, without_marks
from kairos.request.kept_responses import check_response_id, new_response_id
from kairos.request.large_body import LARGE_BYTES, Fields, reading_of
from kairos.request.native import Reading
from kairos.request.parameters import (
    AllowedTokens,
    Biases,
    Choices,
    Logprobs,
    Seed,
    Stop,
    StopTokens,
    Tokens,
    beginning,
    told,
    wrong,
)
from kairos.request.routes import RouteRules
from kairos.request.shape import (
    check_input,
    check_messages,
    check_prompt,
    check_text,
    check_tools,
    not_utf8,
    too_deep,
)

# What engines make of an upload, a recording or a picture: Whisper has 1,500 for half a minute.
_UPLOAD_TOKENS = 1_500
_NO_LIMIT = 10**9  # tokens; what a client allows beyond is as good as no limit

# Images come as data URLs; sound, files and tensors as base64, in fields of any name but those of
# texts.
_TEXT_FIELDS = (
    rb"content|text|prompt|input|query|document|arguments|output|refusal|instructions|description"
    rb"|reasoning(?:_content)?|thinking|system"
)
_MEDIA = re.compile(
    rb'"[Dd][Aa][Tt][Aa]:[^",]{0,255};base64,[^"]*+"'
    rb'|"(?!(?:' + _TEXT_FIELDS + rb')")[A-Za-z_]{1,64}+"\s{0,8}+:\s{0,8}+'
    rb'"[A-Za-z0-9+/=_\\-]{1024,}+"'
)
_BASE64 = bytes(range(48, 58)) + bytes(range(65, 91)) + bytes(range(97, 123)) + b"+/=_-\\"
_PROBE_BYTES, _PROBED_EACH = 64, 1_000
# Bytes and pieces of the sample of a longer text, by which the effect of escapes and blanks is
# estimated.
_SAMPLE_BYTES, _SAMPLES = 4_096, 16
# Tokenizers have single tokens for long runs of blanks, so a pair of blanks counts as a quarter
# byte of text.
_PAIR_BYTES = 1.75
# With these a caller could overtake others inside an engine, or make it connect to another host
# and fetch or give away KV blocks (vLLM's and SGLang's names). They never pass.
_OWN_FIELDS = (
    *("priority", "kv_transfer_params", "ec_transfer_params"),
    *("bootstrap_host", "bootstrap_port", "bootstrap_room"),
)
# vLLM puts members of this field where it puts those, with any value: a text ends the engine.
_EXTRA, _EXTRA_BYTES = "vllm_xargs", 1 << 14
_OWN_EXTRAS = {"kv_transfer_params", "ec_transfer_params", "kv_cache_report_mode"}
_SALT, _ID = "cache_salt", "request_id"
_MODEL_LENGTH = 4_096  # of a name: calls are remembered with it, and a path may have as many
_TOLD_BYTES = 1 << 16  # of a field that may say who calls
_OPTIONS_BYTES = 4_096  # of `stream_options` to which one is added
_STREAM_OPTIONS = re.compile(rb'"stream_options"\s*:\s*')
_JSON_TYPE = re.compile(rb"\s*application/(?:[^;\s]*\+)?json")
_JSON_START = re.compile(rb"\s*\{")
_TOKEN_IDS = re.compile(rb"\s*\[\s*(?:\[\s*)?[0-9]")  # of one prompt, or of several
_SPACE = b" \t\r\n"  # as JSON knows it
_SPACES = {b" ", b"\t", b"\r", b"\n"}
_MAX_SPACE = 64  # before a closing bracket

UNIT_BYTES = 4
_ENDS = tuple(mark * UNIT_BYTES for mark in PREFIX_MARKS)


class _Body(Prompt, frozen=True):
    """Fields that are read on every route."""

    model: str | None = None
    stream: bool | None = None
    stream_options: msgspec.Raw = msgspec.Raw()
    max_tokens: int | float | None = None  # 100.0 is fine with vLLM
    max_completion_tokens: int | float | None = None
    max_output_tokens: int | float | None = None
    cache_salt: msgspec.Raw = msgspec.Raw()
    truncate_prompt_tokens: msgspec.Raw = msgspec.Raw()
    user: msgspec.Raw = msgspec.Raw()
    prompt_cache_key: msgspec.Raw = msgspec.Raw()
    metadata: msgspec.Raw = msgspec.Raw()
    # Kairos's own to say: see `_OWN_FIELDS`.
    priority: msgspec.Raw = msgspec.Raw()
    kv_transfer_params: msgspec.Raw = msgspec.Raw()
    ec_transfer_params: msgspec.Raw = msgspec.Raw()
    request_id: msgspec.Raw = msgspec.Raw()
    vllm_xargs: msgspec.Raw = msgspec.Raw()
    bootstrap_host: msgspec.Raw = msgspec.Raw()
    bootstrap_port: msgspec.Raw = msgspec.Raw()
    bootstrap_room: msgspec.Raw = msgspec.Raw()


class _Call(_Body, frozen=True):
    """Fields of a body on routes that generate, with the checks that apply there."""

    max_tokens: Tokens = None
    max_completion_tokens: Tokens = None
    max_output_tokens: Tokens = None
    n: Choices = None
    best_of: Choices = None
    logprobs: bool | Logprobs = None
    top_logprobs: Logprobs = None
    temperature: float | None = None
    top_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    seed: Seed = None
    stop: Stop = None
    stop_token_ids: StopTokens = None
    allowed_token_ids: AllowedTokens = None
    logit_bias: Biases = None


class Body(msgspec.Struct):
    """A parsed body. `content` goes to the engine: the client's bytes, with Kairos's changes."""

    content: bytes
    model: str | None = None
    stream: bool = False
    usage_added: bool = False  # the client did not ask for the usage chunk that will come
    prompt_tokens: int = 1  # estimated from bytes, unless
    prompt_is_counted: bool = False  # the client sent token ids
    least_prompt_tokens: int = 0  # that it has for certain
    prefix: tuple[int, ...] = ()
    prefix_units: int = 0
    completion_tokens: int = 1  # expected
    completion_limit: int | None = None  # None: the client tells none
    sequences: int = 1  # of tokens that an engine generates
    told: dict[str, msgspec.Raw] = {}  # what it has of `BODY_FIELDS`
    prompt: Prompt = Prompt()


_any_route = msgspec.json.Decoder(_Body)
_call = msgspec.json.Decoder(_Call)
# As vLLM reads them: "0.7" is a number, 1.0 a whole one, 1 is true.
_LAX: dict[msgspec.json.Decoder[Any], msgspec.json.Decoder[Any]] = {
    _any_route: msgspec.json.Decoder(_Body, strict=False),
    _call: msgspec.json.Decoder(_Call, strict=False),
}
_NUMBERS = "temperature", "top_p", "presence_penalty", "frequency_penalty"
_FIELDS: dict[msgspec.json.Decoder[Any], Fields] = {
    _any_route: Fields(_Body),
    _call: Fields(_Call),
}
_stream_options = msgspec.json.Decoder(dict[str, msgspec.Raw] | None)
_text = msgspec.json.Decoder(str)
_members = msgspec.json.Decoder(dict[str, msgspec.Raw])


def read_body(
    content: bytes,
    *,
    chat: bool,
    streams_usage: bool,
    generates: bool = True,
    salt: str | None = None,
    keeper: str | None = None,
) -> Body:
    """Parse what routing needs, in one pass that skips everything else.

    `chat`: `messages` is required. `streams_usage`: the route reports usage at the end of a stream
    if `stream_options` asks for it. `generates`: an engine generates, so its parameters are
    checked. `salt`: separates the prefix caches of tenants; None: they are shared. `keeper`: the
    tenant for whom the engine stores the response; None: tenants are not separated.

    Raises:
        InvalidRequest: The body is not JSON, or has an invalid field.
        NoSuchResponse: It continues a response of another tenant.
    """
    decoder = _call if generates else _any_route
    compiled = reading_of(len(content))
    large = compiled if len(content) > LARGE_BYTES else None
    body = _body(content, decoder, large)
    messages = bytes(body.messages)
    if chat:
        if messages[:1] != b"[":
            raise wrong("messages", beginning(messages) if messages else "missing")
        check_messages(messages, compiled)
    own = _own_members(body, salt, keeper)
    sequences = 1
    if isinstance(body, _Call):
        completes = streams_usage and not chat
        sequences = _check(body, compiled, chat=chat, completes=completes)
    limit = _limit(body)
    prompt = _prompt(body, messages)
    given = body.prompt or body.input
    ids = _count_ids(given)
    is_whole = ids is not None and bytes(given).count(b"[") == 1 and not body.truncate_prompt_tokens
    text_bytes = text_size(prompt or content)
    read = Body(
        content=content,
        model=body.model,
        stream=bool(body.stream),
        prompt_tokens=ids or max(1, text_bytes // BYTES_PER_TOKEN),
        prompt_is_counted=ids is not None,
        least_prompt_tokens=ids if is_whole and ids else 0,
        prefix=hash_prefix(prompt, _apart(body, own.get(_SALT))),
        prefix_units=len(prompt) // UNIT_BYTES,
        completion_tokens=max(1, min(int(limit), EXPECTED_COMPLETION_TOKENS)) * sequences,
        sequences=sequences,
        completion_limit=int(limit) * sequences if 1 <= limit < _NO_LIMIT else None,
        told=_told_of_caller(body),
        prompt=body,
    )
    unwanted = (*_OWN_FIELDS, *own)
    if any(map(body.__getattribute__, unwanted)):
        if large is None:
            content = _without(unwanted, content)
        else:
            content = _FIELDS[decoder].without(unwanted, content, large)
    for name, value in own.items():
        content = _with_member(name, value, content)
    read.content = content
    if streams_usage and body.stream:
        spliced = _ask_for_usage(content, bytes(body.stream_options))
        if spliced is not None:
            read.content, read.usage_added = spliced, True
    return read


def body_of(
    rules: RouteRules,
    headers: Mapping[bytes, bytes],
    content: bytes,
    salt: str | None = None,
    keeper: str | None = None,
) -> Body:
    """Parse a call's body as its route requires. For `salt` and `keeper` see `read_body`.

    Raises:
        InvalidRequest: No engine could serve it.
    """
    # However it is spelt, or left out: an engine would read as JSON what was not read so here.
    kind = headers.get(b"content-type")
    is_json = content[:1] == b"{" if kind is None else _JSON_TYPE.match(kind.lower()) is not None
    if not rules.generates and (not is_json or not content):
        return _upload(headers.get(b"content-type", b""), content)
    return read_body(
        content,
        chat=rules.has_messages,
        streams_usage=rules.tells_usage,
        generates=rules.generates,
        salt=salt if rules.needs_memory else None,
        keeper=keeper if rules.is_kept else None,
    )


def _upload(content_type: bytes, content: bytes) -> Body:
    """Return a form with its model; other bodies have none."""
    tokens = min(max(1, len(content) // BYTES_PER_TOKEN), _UPLOAD_TOKENS)
    body = Body(content, prompt_tokens=tokens)
    if content_type[:19].lower() == b"multipart/form-data":
        from kairos.request.multipart import fields_of  # which few processes need

        fields = fields_of(content_type, content, ("model", "stream", _EXTRA))
        body.model = fields.get("model") or None
        body.stream = fields.get("stream", "").lower() in ("true", "1")
        if _EXTRA in fields:
            _check_extra(fields[_EXTRA].encode())
    return body


def _body(content: bytes, decoder: msgspec.json.Decoder[Any], large: Reading | None) -> _Body:
    """Decode a body. Raises InvalidRequest: It is malformed."""
    body = _decoded(content, decoder) if large is None else _decoded_large(content, decoder, large)
    if body.model is not None and len(body.model) > _MODEL_LENGTH:
        raise ModelNotFound(body.model, [])
    return body


def _decoded(content: bytes, decoder: msgspec.json.Decoder[Any]) -> _Body:
    """Decode a body of moderate size. Raises InvalidRequest: It is malformed."""
    try:
        body: _Body = decoder.decode(content)
    except msgspec.ValidationError as error:
        body = _decoded_lax(content, _LAX[decoder], error)
    except msgspec.DecodeError as error:
        raise InvalidRequest(f"the body cannot be read: {error}") from None
    except UnicodeDecodeError as error:
        raise not_utf8(error) from None
    except RecursionError:
        raise too_deep() from None
    check_text(content)  # of which the decoder skips most
    return body


def _decoded_lax(
    content: bytes, decoder: msgspec.json.Decoder[Any], error: msgspec.ValidationError
) -> _Body:
    """Decode a body whose numbers have a form that vLLM accepts, too.

    Raises:
        InvalidRequest: That fails as well; with the text of `error`.
    """
    try:
        body: _Body = decoder.decode(content)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise told(error) from None
    for name in _NUMBERS:
        value = getattr(body, name, None)
        if value is not None and not math.isfinite(value):  # as "nan" is one
            raise told(error) from None
    return body


def _decoded_large(content: bytes, decoder: msgspec.json.Decoder[Any], compiled: Reading) -> _Body:
    """Decode a large body, after its members have been counted."""
    found = _FIELDS[decoder].find_members(content, compiled)
    try:
        body: _Body = decoder.decode(found.small)
    except msgspec.ValidationError as error:
        body = _decoded_lax(found.small, _LAX[decoder], error)
    if found.beyond is not None:
        raise InvalidRequest(str(found.beyond), found.beyond.param)  # has no frame that has it
    return msgspec.structs.replace(body, **found.raw)


def _check(body: _Call, compiled: Reading | None, *, chat: bool, completes: bool) -> int:
    """Check fields that the decoder does not, and return how many answers an engine generates."""
    sequences = max(body.n or 1, body.best_of or 1)
    if (tools := _told(body.tools)) and tools[:1] != b"[":
        raise wrong("tools", beginning(tools))
    if tools:
        check_tools(tools, compiled)
    if (options := _told(body.stream_options)) and options[:1] != b"{":
        raise wrong("stream_options", beginning(options))
    if completes and (prompt := _told(body.prompt)):
        sequences *= check_prompt(prompt, sequences, compiled)
    if not chat and not completes and (given := _told(body.input)):
        check_input(given, compiled)
    return sequences


def _own_members(body: _Body, salt: str | None, keeper: str | None) -> dict[str, str]:
    """Return the members that Kairos sets in the body."""
    if body.vllm_xargs:
        _check_extra(body.vllm_xargs)
    own = {} if salt is None else {_SALT: _salted(salt, body)}
    if keeper is not None:
        if previous := _told(body.previous_response_id):
            named = decode_foreign(_text, previous)
            if named is not None:  # else it is not a text: the engine says so
                check_response_id(named, keeper)
        own[_ID] = new_response_id(keeper)
    return own


def _check_extra(extra: bytes) -> None:
    """Check that the extra arguments contain none of the members that only Kairos may set.

    Raises:
        InvalidRequest: They do, or are too large.
    """
    if len(extra) > _EXTRA_BYTES:
        raise InvalidRequest(f"'{_EXTRA}' has more than {_EXTRA_BYTES} bytes", _EXTRA)
    for name in decode_foreign(_members, extra) or ():  # not an object: the engine says so
        if name in _OWN_EXTRAS:
            raise InvalidRequest(f"'{_EXTRA}.{name}' is not the client's to say", _EXTRA)


def _without(names: Iterable[str], content: bytes) -> bytes:
    """Return the body without these members, and with the others as the client wrote them."""
    members = _members.decode(content)
    for name in names:
        members.pop(name, None)
    return msgspec.json.encode(members)


def _with_member(name: str, value: str, content: bytes) -> bytes:
    """Return the body with an additional member, which it does not have yet."""
    start = _JSON_START.match(content)
    assert start is not None, "decoded as an object"
    at = start.end()
    comma = b"" if content[at:].lstrip(_SPACE)[:1] == b"}" else b","
    return b'%b"%b":"%b"%b%b' % (content[:at], name.encode(), value.encode(), comma, content[at:])


def _salted(salt: str, body: _Body) -> str:
    """Return a salt that no other tenant can produce, different for each salt of the client."""
    own = bytes(body.cache_salt) if body.cache_salt else b""
    return blake2b(own, key=blake2b(salt.encode()).digest(), digest_size=16).hexdigest()


def _limit(body: _Body) -> float:
    """Return the maximum number of tokens. The client may send -1 (as for llama.cpp), or 1e300."""
    if body.max_completion_tokens is not None:
        return body.max_completion_tokens
    if body.max_tokens is not None:
        return body.max_tokens
    return _NO_LIMIT if body.max_output_tokens is None else body.max_output_tokens


def _told_of_caller(body: _Body) -> dict[str, msgspec.Raw]:
    if not (body.user or body.prompt_cache_key or body.metadata):
        return {}
    told = {name: getattr(body, name) for name in BODY_FIELDS}
    return {name: value for name, value in told.items() if 0 < len(value) <= _TOLD_BYTES}


def _apart(body: _Body, salted: str | None) -> bytes:
    """Return what distinguishes prompts with the same words: the model, and the salt."""
    model = msgspec.json.encode(body.model)
    if salted is not None:
        return model + salted.encode()
    return model + _told(body.cache_salt) if body.cache_salt else model


def _prompt(body: _Body, messages: bytes) -> bytes:
    """Return what becomes the prompt, in the order of chat templates, as the client wrote it.

    Its end is left open, so that a continued conversation begins with all of it.
    """
    if messages == b"null":
        messages = b""
    last = _unclosed(messages or _told(body.prompt) or _told(body.input))
    if not (body.tools or body.instructions or body.system):
        return without_marks(last)
    return without_marks(_told(body.tools) + _told(body.instructions) + _told(body.system) + last)


def _told(value: msgspec.Raw) -> bytes:
    told = bytes(value) if value else b""
    return b"" if told == b"null" else told


def _unclosed(value: bytes) -> bytes:
    """Return a list without its closing bracket, or a text without its closing quote."""
    end = max(0, len(value) - 1)
    if value[end - 1 : end] in _SPACES:
        before = value[max(0, end - _MAX_SPACE) : end]
        end -= len(before) - len(before.rstrip(_SPACE))
    return value[:end]


def _count_ids(prompt: msgspec.Raw) -> int | None:
    """Return the number of token ids in a prompt; None if the prompt is not token ids."""
    if not prompt:
        return None
    return bytes(prompt).count(b",") + 1 if _TOKEN_IDS.match(prompt) else None


def text_size(text: bytes) -> int:
    """Return the size of a JSON text in bytes of plain text, as tokenizers count it.

    Images, sound and other data do not count. Escapes count as what they stand for, and runs of
    blanks little, since tokenizers have tokens for them.
    """
    left: bytes | memoryview = text
    if b";base64," in text or _has_long_data(text):
        left = _without_media(text, reading_of(len(text)))
    size = len(left)
    if size <= _SAMPLE_BYTES:
        return max(0, int(size - _saved_bytes(bytes(left))))
    step = size // _SAMPLES
    piece = _SAMPLE_BYTES // _SAMPLES
    sample = b"".join([left[at : at + piece] for at in range(0, size - piece, step)])
    return max(0, int(size - _saved_bytes(sample) * size / len(sample)))


def _without_media(text: bytes, compiled: Reading | None) -> bytes | memoryview:
    if compiled is None:
        return _MEDIA.sub(b"", text)
    left = bytearray(len(text))
    buffer = (ctypes.c_char * len(left)).from_buffer(left)
    size = compiled.without_media(text, len(text), ctypes.addressof(buffer))
    return memoryview(left)[:size]


def _saved_bytes(text: bytes) -> float:
    saved = _PAIR_BYTES * text.count(b"  ")
    if (escapes := text.count(b"\\")) > 0:
        by_number, low = text.count(b"\\u"), text.count(b"\\u0")  # of two bytes in UTF-8, of three
        saved += escapes - by_number + 4 * low + 3 * (by_number - low)
        saved += _PAIR_BYTES * (text.count(rb"\n\n") + text.count(rb"\t\t"))
    return saved


def _has_long_data(text: bytes) -> bool:
    """Return whether the text contains base64 data long enough to meet a probe."""
    for at in range(0, len(text) - _PROBE_BYTES, _PROBED_EACH):
        piece = text[at : at + _PROBE_BYTES]
        if b" " not in piece and piece.isascii() and not piece.translate(None, _BASE64):
            return True
    return False


def _ask_for_usage(content: bytes, options: bytes) -> bytes | None:
    """Return the body with `stream_options.include_usage` set, every other byte unchanged.

    None: nothing is to be changed, since the client asks for usage itself, has too many options, or
    `stream_options` appears more than once or with escapes, so that its place is uncertain.
    """
    if not options:
        start = _JSON_START.match(content)
        assert start is not None, "decoded as an object"
        at = start.end()
        return content[:at] + b'"stream_options":{"include_usage":true},' + content[at:]
    if len(options) > _OPTIONS_BYTES:
        return None
    places = list(islice(_STREAM_OPTIONS.finditer(content), 2))
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


def hash_prefix(prompt: bytes, apart: bytes) -> tuple[int, ...]:
    """Return a hash for each mark within the prompt; the part beyond the last (4 MiB) is ignored.

    32-bit hashes of two different prompts collide once in 4 * 10^9 times; then a call is considered
    cached where it is not, which only costs performance. Gateways of one pool must compute the same
    hashes, so they have no key; SHA-256 is accelerated by processors.

    Args:
        prompt: The prompt, in the order in which the engine reads it.
        apart: What else must be equal for two prompts to share a cache; not part of the prompt.
    """
    running = sha256(apart)
    view = memoryview(prompt)
    hashes: list[int] = []
    start = 0
    for end in _ENDS[: bisect_right(_ENDS, len(prompt))]:
        running.update(view[start:end])
        hashes.append(int.from_bytes(running.digest()[:4]))  # a digest does not end the hash
        start = end
    return tuple(hashes)
