"""Reader of a stream of server-sent events while it is forwarded: usage, errors, progress, its end.

Bytes are passed on event by event as they arrived, so that an error can follow wherever the stream
breaks. A usage chunk that the client did not request is left out.
"""

import re
from typing import Annotated

import msgspec

from kairos.request import decode_foreign

_END_OF_EVENT = re.compile(rb"\r?\n\r?\n")
# In every event worth parsing. Some engines say in each chunk that its usage is null.
_OF_INTEREST = re.compile(rb'"(?:usage"(?!:null)|error"|response\.|message_stop")')
_WORDS = (
    b'"error"',
    b'"response.',
    b"[DONE]",
    b'"message_stop"',
)  # with `"usage"`, all that is of interest
# The beginning of a non-empty chunk of an answer. A model's text cannot look like that: its quotes
# are escaped.
_TEXT = b'"content":"'  # as vLLM spells most of them; looked for first, in a third of the time
_CONTENT = re.compile(
    rb'"(?:content|text|arguments|reasoning|reasoning_content|thinking|partial_json)"\s*:\s*"[^"\r\n]'
)
_LAST_EVENTS = {
    *("response.completed", "response.incomplete", "response.failed"),
    "message_stop",
}
_MAX_EVENT_BYTES = 1 << 20  # an unfinished event larger than this is forwarded unread


# Bounded, because what an engine tells goes on into counters and logs that take no more.
_Count = Annotated[int, msgspec.Meta(ge=0, lt=1 << 48)]


class _Details(msgspec.Struct):
    cached_tokens: _Count | None = None


class Usage(msgspec.Struct):
    """Token counts as engines report them, with the names of OpenAI's and Anthropic's APIs."""

    prompt_tokens: _Count | None = None
    completion_tokens: _Count | None = None
    input_tokens: _Count | None = None
    output_tokens: _Count | None = None
    prompt_tokens_details: _Details | None = None
    input_tokens_details: _Details | None = None
    # Of Anthropic's: beside `input_tokens`, not among them.
    cache_read_input_tokens: _Count | None = None
    cache_creation_input_tokens: _Count | None = None

    @property
    def prompt(self) -> int | None:
        if self.prompt_tokens is not None or self.input_tokens is None:
            return self.prompt_tokens
        beside = self.cache_read_input_tokens or 0, self.cache_creation_input_tokens or 0
        return self.input_tokens + sum(beside)

    @property
    def completion(self) -> int | None:
        return self.completion_tokens if self.completion_tokens is not None else self.output_tokens

    @property
    def cached(self) -> int | None:
        if self.cache_read_input_tokens is not None:
            return self.cache_read_input_tokens
        details = self.prompt_tokens_details or self.input_tokens_details
        return details.cached_tokens if details else None

    def after(self, earlier: "Usage | None") -> "Usage":
        """Return the usage, merged with what the same stream reported earlier."""
        if earlier is None:
            return self
        fields = msgspec.structs.asdict(self).items()
        now = {name: value for name, value in fields if value is not None}
        return msgspec.structs.replace(earlier, **now)


class _Answer(msgspec.Struct):
    """The fields of an answer, or of a chunk, that Kairos reads."""

    type: str | None = None
    usage: Usage | None = None
    choices: msgspec.Raw = msgspec.Raw()
    response: "_Answer | None" = None  # the Responses API wraps its last event's answer
    message: msgspec.Raw = msgspec.Raw()  # Anthropic's wraps its first event's; elsewhere a text
    error: msgspec.Raw = msgspec.Raw()


_decoder = msgspec.json.Decoder(_Answer)
_json = msgspec.json.Decoder(msgspec.Raw)


def usage_of(answer: bytes | bytearray) -> Usage | None:
    """Return the usage in a complete JSON answer, or None."""
    parsed = _parse(answer)
    return parsed.usage if parsed else None


def begin_well(events: bytes) -> bool:
    """Return whether the first event with data is JSON, or the stream's end."""
    start = 0
    while start < len(events):
        boundary = _END_OF_EVENT.search(events, start)
        end, follows = (len(events),) * 2 if boundary is None else boundary.span()
        if data := b"\n".join(_data_of(events[start:end])):
            return data == b"[DONE]" or decode_foreign(_json, data) is not None
        start = follows
    return True


class SseReader:
    """Reader of a stream: feed it the upstream's bytes, and forward what it returns."""

    def __init__(self, *, drop_usage_chunk: bool, keep_bytes: int = 0) -> None:
        """Create the reader. It keeps up to `keep_bytes` of the stream."""
        self._drop_usage_chunk = drop_usage_chunk
        self._pending = b""
        # What is before the text of an event, between those of two such events, and after it.
        self._around: tuple[bytes, bytes, bytes] | None = None
        self._keep_bytes = keep_bytes
        self.kept = bytearray()  # of the stream; nothing, where it is longer
        self.usage: Usage | None = None
        self.error: str | None = None
        self.done = False  # the stream said that it was complete
        self.events = 0  # that were whole, and more than comments
        self._chunks = 0  # with content

    @property
    def completion_tokens(self) -> int:
        """Number of tokens so far; a lower bound, as a chunk may carry several."""
        told = self.usage.completion if self.usage is not None else None
        return max(told or 0, self._chunks)

    def feed(self, data: bytes) -> bytes:
        """Take bytes; return those to forward now: all complete events."""
        if self._keep_bytes:
            self.kept += data
            if len(self.kept) > self._keep_bytes:
                self.kept.clear()
                self._keep_bytes = 0
        if self._pending:
            return self._feed(data)
        plain = self._pass_over_texts(data) or self._pass_over_all(data)
        if plain == len(data):
            return data
        return data[:plain] + self._feed(data[plain:]) if plain else self._feed(data)

    def _pass_over_texts(self, data: bytes) -> int:
        """Do what `_pass_over` does, six times as fast, for events that differ only in their text.

        Nearly all events do.
        """
        if self._around is None or not data.startswith(self._around[0]):
            return 0
        begin, between, end = self._around
        last = data.rfind(end, len(begin))
        text, events = data[len(begin) : max(0, last)], 1
        if b'"' in text:
            texts = text.split(between)
            text, events = b"".join(texts) if all(texts) else b"", len(texts)
        if not text or b'"' in text or b"\n" in text:
            return 0
        self.events += events
        self._chunks += events
        return last + len(end)

    def _pass_over_all(self, data: bytes) -> int:
        """Do what `_pass_over` does for many events: most are like the second one."""
        second = data.find(b"\n\n", data.find(b"\n\n") + 2) + 2
        plain = self._pass_over(data[:second] if second > 1 else data)
        if plain != second or second == len(data):
            return plain
        rest = data[second:]
        return second + (self._pass_over_texts(rest) or self._pass_over(rest))

    def _pass_over(self, data: bytes) -> int:
        """Count the complete, uninteresting events at the beginning, nearly all there are.

        Return their size in bytes. It does what `_feed` would, in a third of the time.
        """
        if b"\r" in data or b"\n\n\n" in data:
            return 0
        at = data.find(b'"usage"')
        while at >= 0 and data.startswith(b":null", at + 7):
            at = data.find(b'"usage"', at + 12)
        if at < 0:
            at = len(data)
        for word in _WORDS:
            found = data.find(word, 0, at)
            if found >= 0:
                at = found
        end = data.rfind(b"\n\n", 0, at) + 2
        if end < 2:
            return 0
        events = chunks = 0
        for event in data[: end - 2].split(b"\n\n"):
            events += event.startswith(b"data:") or b"data:" in event
            at = event.find(_TEXT)
            follows = at + len(_TEXT)
            chunks += (at >= 0 and event[follows : follows + 1] not in b'"\n') or _has_content(
                event
            )
        self.events += events
        self._chunks += chunks
        self._learn(data[data.rfind(b"\n\n", 0, end - 2) + 2 : end] if events > 1 else data[:end])
        return end

    def _learn(self, event: bytes) -> None:
        """Remember what surrounds the text of an event with nothing else of interest."""
        begin = event.find(_TEXT) + len(_TEXT)
        if begin > len(_TEXT) and event.startswith(b"data:"):
            text_end = event.find(b'"', begin)
            if text_end > begin:
                around = event[:begin], event[text_end:]
                self._around = around[0], around[1] + around[0], around[1]

    def _feed(self, data: bytes) -> bytes:
        buffered = self._pending + data if self._pending else data
        start = 0
        forward: list[bytes] = []
        # What was pending has no boundary in it, but one may have begun at its end.
        for boundary in _END_OF_EVENT.finditer(buffered, max(0, len(self._pending) - 3)):
            event = buffered[start : boundary.end()]
            start = boundary.end()
            self.events += b"data:" in event
            if self._read(event) or not self._drop_usage_chunk:
                forward.append(event)
        self._pending = buffered[start:]
        if len(self._pending) > _MAX_EVENT_BYTES:
            self.done = True  # or not: an event that was not read is not held against the stream
            forward.append(self._pending)
            self._pending = b""
        return forward[0] if len(forward) == 1 else b"".join(forward)

    def rest(self) -> bytes:
        """Return an unfinished last event, as some streams end with, and read it."""
        rest, self._pending = self._pending, b""
        self._read(rest)
        return rest

    def _read(self, event: bytes) -> bool:
        """Read an event; return False for a usage chunk that the client did not request."""
        if not _OF_INTEREST.search(event):
            if b"[DONE]" in event and _data_of(event) == [b"[DONE]"]:
                self.done = True
            else:
                self._chunks += _has_content(event)
            return True
        parsed = _parse(b"\n".join(_data_of(event)))
        if parsed is None:
            return True
        is_chunk = _has_content(event) if parsed.type is None else parsed.type.endswith(".delta")
        self._chunks += is_chunk
        first = _parse(parsed.message) if parsed.type == "message_start" else None
        for answer in (parsed, parsed.response, first):
            if answer is not None:
                self.usage = answer.usage.after(self.usage) if answer.usage else self.usage
                if answer.error and bytes(answer.error) != b"null":
                    self.error = bytes(answer.error)[:500].decode("utf-8", "replace")
        if parsed.type in _LAST_EVENTS:
            self.done = True
        is_usage_chunk = parsed.usage is not None and _is_empty_list(bytes(parsed.choices))
        return not is_usage_chunk


def _has_content(event: bytes) -> bool:
    at = event.find(_TEXT)
    if at >= 0 and event[at + len(_TEXT) : at + len(_TEXT) + 1] != b'"':
        return True
    return _CONTENT.search(event, max(0, event.find(b'"choices"'))) is not None


def _is_empty_list(json: bytes) -> bool:
    return json[:1] == b"[" and json[1:-1].strip() == b""


def _data_of(event: bytes) -> list[bytes]:
    lines = event.splitlines()
    return [line[5:].strip() for line in lines if line.startswith(b"data:")]


def _parse(answer: bytes | bytearray | msgspec.Raw) -> _Answer | None:
    """Parse an answer; None: it is unreadable, and the client's to judge."""
    parsed: _Answer | None = decode_foreign(_decoder, answer)
    return parsed
