"""From an engine's answer to the client's, and what becomes of the call with it."""

from collections.abc import Callable
from typing import Protocol

from kairos.errors import UpstreamFailed
from kairos.events import Event, Failed, Finished, FirstToken
from kairos.live.proxy.engine_answer import EngineAnswer
from kairos.live.proxy.sse import SseReader, Usage, usage_of
from kairos.live.request.body import Body
from kairos.live.request.client_response import ClientResponse
from kairos.live.request.identity.engine_reply import MAX_ANSWER_BYTES

# Of the engine's headers these stay behind: they belong to the connection, or we set them.
_HOP_BY_HOP = {
    b"connection",
    b"keep-alive",
    b"proxy-authenticate",
    b"proxy-connection",
    b"te",
    b"trailer",
    b"transfer-encoding",
    b"upgrade",
    b"content-length",
    b"x-request-id",
    b"server",
    b"set-cookie",
}
_ERROR_IN_STREAM = "engine reported an error in its stream"
_USAGE_LIMIT_BYTES = 8 << 20  # answers larger than this are forwarded without looking for usage
# What another instance may well answer better; any other status is the client's to know.
_INSTANCE_FAILED = {500, 502, 503, 504}
_ERROR_BYTES = 1 << 16  # of an engine's error, kept in case nothing better comes


class Owner(Protocol):
    """Whose call it is."""

    wants_answer: bool

    def counted(self, prompt_tokens: int) -> None:
        """So many tokens the prompt has in truth."""

    def answered(self, answer: bytes | bytearray, *, streamed: bool) -> None:
        """What the engine answered, before the client has all of it; where it `wants_answer`, and
        nothing of one over `MAX_ANSWER_BYTES`."""

    def ended(self, error: Exception | None) -> None:
        """The call has ended: by an error, of which the client has not heard yet, or else whole, or
        because the client left."""


class EngineError(UpstreamFailed):
    """That it cannot answer, in the engine's own words, of which the client has heard nothing. In a
    stream they may come with status 200."""

    def __init__(
        self, instance_id: str, status: int, headers: list[tuple[bytes, bytes]], body: bytes
    ) -> None:
        super().__init__(f"instance {instance_id} answered with an error of its own ({status})")
        self.answer = status, headers, body


class ResponseForwarder:
    """Forwards what one engine answers to a call, as it comes.

    `came` and `ended` may raise:
        EngineError: the engine says that it cannot answer; only where the call `tries_again`.
        UpstreamFailed: it is no answer, or ends before its end.
    """

    def __init__(
        self,
        instance_id: str,
        answer: EngineAnswer,
        response: ClientResponse,
        body: Body,
        feed: Callable[[Event], None],
        owner: Owner,
    ) -> None:
        self._instance_id = instance_id
        self._answer = answer
        self._response = response
        self._request_id = response.request_id
        self._body = body
        self._feed = feed
        self._owner = owner
        self.settled: Event | None = None
        """What becomes of the call, as soon as its stream has said so: there clients may leave,
        without waiting for the engine to end it."""

    def came(self, data: bytes) -> None:
        """A part of the body, to be forwarded."""
        raise NotImplementedError

    def ended(self) -> Event:
        """It is whole. Returns Finished or Failed."""
        raise NotImplementedError

    def _headers(self) -> list[tuple[bytes, bytes]]:
        return [header for header in self._answer.headers if header[0] not in _HOP_BY_HOP]

    def _write(self, data: bytes) -> None:
        if not self._response.write(data, more=True):
            self._answer.pause()

    def _outcome(self, usage: Usage | None) -> Event:
        status = self._answer.status
        if status >= 400:
            reason, by_instance = f"engine answered {status}", status in _INSTANCE_FAILED
            return Failed(self._request_id, reason, by_instance=by_instance)
        if usage is None:
            return Finished(self._request_id)
        if usage.prompt is not None:
            self._owner.counted(usage.prompt)
        return Finished(self._request_id, usage.prompt, usage.completion, usage.cached)


class _Passed(ResponseForwarder):
    """What is neither JSON nor a stream is passed on as it comes."""

    def came(self, data: bytes) -> None:
        self._answer.progressed()
        if not self._response.started:
            self._response.start(self._answer.status, self._headers())
        self._write(data)

    def ended(self) -> Event:
        if not self._response.started:
            self._response.start(self._answer.status, self._headers())
        self._response.write(b"", more=False)
        return self._outcome(None)


class _UnreadStream(_Passed):
    """A stream of which neither the end nor the errors are known."""

    def came(self, data: bytes) -> None:
        if not self._response.started:
            self._response.start(self._answer.status, self._headers())
            self._feed(FirstToken(self._request_id))
        super().came(data)


class _Json(ResponseForwarder):
    """Forwarded whole, so that it has a length and its usage can be read; one that is very large,
    as it comes."""

    _parts: bytes | bytearray = b""

    def came(self, data: bytes) -> None:
        self._answer.progressed()
        if self._response.started:
            self._write(data)
            return
        if not self._parts:
            self._parts = data
            return
        if not isinstance(self._parts, bytearray):
            self._parts = bytearray(self._parts)
        self._parts += data
        if len(self._parts) > _USAGE_LIMIT_BYTES:
            self._response.start(self._answer.status, self._headers())
            self._write(bytes(self._parts))

    def ended(self) -> Event:
        status = self._answer.status
        if self._response.started:
            self._response.write(b"", more=False)
            return self._outcome(None)
        answer = bytes(self._parts)
        if status == 200 and not _is_json(answer):
            raise UpstreamFailed(f"what instance {self._instance_id} answered is no JSON")
        headers = self._headers()
        headers.append((b"content-length", b"%d" % len(answer)))
        self._response.start(status, headers)
        if status == 200 and self._owner.wants_answer:
            self._owner.answered(answer, streamed=False)
        self._response.write(answer, more=False)
        return self._outcome(usage_of(answer))


class _Error(ResponseForwarder):
    """An engine's error, which may never reach the client."""

    _said = b""

    def came(self, data: bytes) -> None:
        self._answer.progressed()
        self._said += data
        if len(self._said) >= _ERROR_BYTES:
            self.ended()

    def ended(self) -> Event:
        said = self._said[:_ERROR_BYTES]
        raise EngineError(self._instance_id, self._answer.status, self._headers(), said)


class _Stream(ResponseForwarder):
    """A stream of events: its first event makes it the client's, and what is whole of it is sent on
    in the callback that brings it."""

    reader: SseReader
    tries_again = False
    _first = b""  # what came before it was begun

    def came(self, data: bytes) -> None:
        reader = self.reader
        if reader.error is not None and not self._response.started:
            self._first += data
            if len(self._first) >= _ERROR_BYTES:
                self._refuse()
            return
        events = reader.events
        forward = reader.feed(data)
        if reader.events > events or reader.done:
            self._answer.progressed()
        if self._response.started:
            if reader.done or reader.error is not None:
                self._settle()
            if forward:
                self._write(forward)
            return
        if reader.error is not None and self.tries_again:
            self._first += data
            return
        if not reader.events and not forward:
            self._first += data
            return
        self._begin(forward)

    def _begin(self, forward: bytes) -> None:
        """Only now: until an engine's first event, a failure can still be a plain error."""
        self._first = b""
        self._response.start(self._answer.status, self._headers())
        self._feed(FirstToken(self._request_id))
        self._settle()
        if forward:
            self._write(forward)

    def _refuse(self) -> None:
        said = self._first[:_ERROR_BYTES]
        raise EngineError(self._instance_id, self._answer.status, self._headers(), said)

    def ended(self) -> Event:
        reader = self.reader
        if reader.error is not None and not self._response.started:
            self._refuse()
        rest = reader.rest()
        self._settle()
        if not reader.done:
            raise UpstreamFailed(
                f"instance {self._instance_id} ended its stream before it was complete"
            )
        if not self._response.started:
            self._response.start(self._answer.status, self._headers())
        self._response.write(rest, more=False)
        return self.settled or self._outcome(None)

    def _settle(self) -> None:
        reader = self.reader
        if reader.error is not None:
            self.settled = Failed(self._request_id, _ERROR_IN_STREAM, by_instance=True)
        elif reader.done and self.settled is None:
            self.settled = self._outcome(reader.usage)
            if self._owner.wants_answer:
                self._owner.answered(reader.kept, streamed=True)


def forwarder(
    instance_id: str,
    answer: EngineAnswer,
    response: ClientResponse,
    body: Body,
    feed: Callable[[Event], None],
    owner: Owner,
    streams: dict[str, SseReader],
    *,
    reads_stream: bool,
    tries_again: bool,
) -> ResponseForwarder:
    """Of an answer whose status and headers are here.

    Args:
        streams: where a stream can be seen while it comes.
        reads_stream: whether its end and its errors are known.
        tries_again: an engine's error that the client has not begun to hear is raised.

    Raises:
        UpstreamFailed: it is no answer.
    """
    status = answer.status
    if 300 <= status < 400:
        # Neither we nor the client, who would go around the queue, should go there.
        raise UpstreamFailed(f"instance {instance_id} answered {status}, a redirect")
    parts = instance_id, answer, response, body, feed, owner
    if status in _INSTANCE_FAILED and tries_again:
        return _Error(*parts)
    kind = answer.content_type
    if kind == b"application/json":
        return _Json(*parts)
    if kind != b"text/event-stream":
        return _Passed(*parts)
    response.streams = True
    if not reads_stream:
        return _UnreadStream(*parts)
    stream = _Stream(*parts)
    keep_bytes = MAX_ANSWER_BYTES if owner.wants_answer else 0
    stream.reader = SseReader(drop_usage_chunk=body.usage_added, keep_bytes=keep_bytes)
    stream.tries_again = tries_again
    streams[response.request_id] = stream.reader
    return stream


def answer_error(error: EngineError, response: ClientResponse) -> Event:
    """An engine's error becomes the client's: nothing better came."""
    status, headers, body = error.answer
    response.start(status, [*headers, (b"content-length", b"%d" % len(body))])
    response.write(body, more=False)
    reason = _ERROR_IN_STREAM if status == 200 else f"engine answered {status}"
    return Failed(response.request_id, reason, by_instance=True)


def _is_json(answer: bytes) -> bool:
    """By its ends only: some engines write NaN, which their clients know to read."""
    text = answer.strip()
    return text[:1] + text[-1:] in (b"{}", b"[]")
