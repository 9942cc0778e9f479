"""From an engine's answer to the client's, and what becomes of the call with it."""

import time
from collections.abc import Callable
from typing import Protocol

from kairos.errors import UpstreamFailed
from kairos.events import Event, Failed, Finished, FirstToken
from kairos.live.proxy.engine_answer import EngineAnswer
from kairos.live.proxy.sse import SseReader, Usage, usage_of
from kairos.live.request.body import Body
from kairos.live.request.client_response import ClientResponse
from kairos.live.request.identity.engine_reply import MAX_ANSWER_BYTES

OnCounted = Callable[[int], None]

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


class OnAnswer(Protocol):
    def __call__(self, answer: bytes | bytearray, *, streamed: bool) -> None: ...


class EngineError(UpstreamFailed):
    """That it cannot answer, in the engine's own words, of which the client has heard nothing. In a
    stream they may come with status 200."""

    def __init__(
        self, instance_id: str, status: int, headers: list[tuple[bytes, bytes]], body: bytes
    ) -> None:
        super().__init__(f"instance {instance_id} answered with an error of its own ({status})")
        self.answer = status, headers, body


class ResponseForwarder:
    """Forwards what engines answer to one call."""

    def __init__(
        self,
        request_id: str,
        body: Body,
        feed: Callable[[Event], None],
        streams: dict[str, SseReader],
        stall_s: float,
        on_counted: OnCounted,
        on_answer: OnAnswer | None,
        *,
        reads_stream: bool,
        tries_again: bool,
    ) -> None:
        """`streams`: where a stream can be seen while it comes. `stall_s`: so long a stream may be
        without a whole event, comments apart. `reads_stream`: whether its end and
        its errors are known. `tries_again`: an engine's error that the client has not begun to hear
        is raised."""
        self._request_id = request_id
        self._body = body
        self._feed = feed
        self._streams = streams
        self._stall_s = stall_s
        self._on_counted = on_counted
        self._on_answer = on_answer
        self._reads_stream = reads_stream
        self._tries_again = tries_again
        self.settled: Event | None = None
        """What becomes of the call, as soon as its stream has said so: there clients may leave,
        without waiting for the engine to end it."""

    async def forward(
        self, instance_id: str, response: EngineAnswer, exchange: ClientResponse
    ) -> Event:
        """Return Finished or Failed.

        Raises:
            EngineError: see `tries_again`.
            UpstreamFailed: it is no answer, or ends before its end.
            OSError: the connection broke, or brought nothing in time.
        """
        if 300 <= response.status < 400:
            # Neither we nor the client, who would go around the queue, should go there.
            raise UpstreamFailed(f"instance {instance_id} answered {response.status}, a redirect")
        headers = [
            (name.lower(), value)
            for name, value in response.raw_headers
            if name.lower() not in _HOP_BY_HOP
        ]
        if response.status in _INSTANCE_FAILED and self._tries_again:
            error = await _read_some(response)
            raise EngineError(instance_id, response.status, headers, error)
        kind = response.content_type
        if kind == "text/event-stream":
            exchange.streams = True
            return await self._forward_stream(instance_id, response, headers, exchange)
        if kind == "application/json":
            return await self._forward_json(instance_id, response, headers, exchange)
        await exchange.start(response.status, headers)
        async for data in response.iter_any():
            await exchange.body(data, more=True)
        await exchange.body(b"", more=False)
        return self._ended(response.status, None)

    async def forward_error(self, error: EngineError, exchange: ClientResponse) -> Event:
        status, headers, body = error.answer
        await exchange.start(status, [*headers, (b"content-length", str(len(body)).encode())])
        await exchange.body(body, more=False)
        reason = _ERROR_IN_STREAM if status == 200 else f"engine answered {status}"
        return Failed(self._request_id, reason, by_instance=True)

    async def _forward_json(
        self,
        instance_id: str,
        response: EngineAnswer,
        headers: list[tuple[bytes, bytes]],
        exchange: ClientResponse,
    ) -> Event:
        """Forward the answer whole, so that it has a length and its usage can be read; one that
        is very large, as it comes. Raises UpstreamFailed: it is no JSON, whatever it says."""
        content, answer = response, bytearray()
        while not content.at_eof() and len(answer) <= _USAGE_LIMIT_BYTES:
            answer += await content.readany()
        if content.at_eof():
            if response.status == 200 and not _is_json(answer):
                raise UpstreamFailed(f"what instance {instance_id} answered is no JSON")
            headers.append((b"content-length", str(len(answer)).encode()))
        await exchange.start(response.status, headers)
        while not content.at_eof():
            await exchange.body(bytes(answer), more=True)
            answer = bytearray(await content.readany())
        last = bytes(answer)
        if self._on_answer is not None and response.status == 200:
            self._on_answer(last, streamed=False)
        await exchange.body(last, more=False)
        return self._ended(response.status, usage_of(last))

    async def _forward_stream(
        self,
        instance_id: str,
        response: EngineAnswer,
        headers: list[tuple[bytes, bytes]],
        exchange: ClientResponse,
    ) -> Event:
        keep_bytes = MAX_ANSWER_BYTES if self._on_answer is not None else 0
        reader = SseReader(drop_usage_chunk=self._body.usage_added, keep_bytes=keep_bytes)
        self._streams[self._request_id] = reader
        if await self._forward_first(instance_id, response, headers, exchange, reader):
            piped = self._piped(response, exchange, reader)
            await response.pipe(piped, exchange.drained)
        rest = reader.rest()
        self._settle(response.status, reader)
        if self._reads_stream and not reader.done:
            raise UpstreamFailed(f"instance {instance_id} ended its stream before it was complete")
        if not exchange.started:
            await exchange.start(response.status, headers)
        await exchange.body(rest, more=False)
        return self.settled or self._ended(response.status, None)

    async def _forward_first(
        self,
        instance_id: str,
        response: EngineAnswer,
        headers: list[tuple[bytes, bytes]],
        exchange: ClientResponse,
        reader: SseReader,
    ) -> bool:
        """The stream up to its first event; whether there was one."""
        came = bytearray()
        pieces = _Pieces(response, reader if self._reads_stream else None, self._stall_s)
        while data := await pieces.next():
            forward = reader.feed(data) if self._reads_stream else data
            came += data
            if reader.error is not None and self._tries_again:
                came += await _read_some(response)
                raise EngineError(instance_id, response.status, headers, bytes(came))
            if not forward and self._reads_stream and not reader.events:
                continue
            # Only now: until an engine's first event, a failure can still be a plain error.
            await exchange.start(response.status, headers)
            self._feed(FirstToken(self._request_id))
            self._settle(response.status, reader)
            if forward:
                await exchange.body(forward, more=True)
            return True
        self._settle(response.status, reader)
        return False

    def _piped(
        self, response: EngineAnswer, exchange: ClientResponse, reader: SseReader
    ) -> Callable[[bytes], bool]:
        """Takes what comes of a stream, and sends on what is whole of it."""

        def take(data: bytes) -> bool:
            if not self._reads_stream:
                response.progressed()
                return exchange.write(data)
            events = reader.events
            forward = reader.feed(data)
            if reader.events > events or reader.done:
                response.progressed()
            if reader.done or reader.error is not None:
                self._settle(response.status, reader)
            return exchange.write(forward) if forward else True

        return take

    def _settle(self, status: int, reader: SseReader) -> None:
        if reader.error is not None:
            self.settled = Failed(self._request_id, _ERROR_IN_STREAM, by_instance=True)
        elif reader.done and self.settled is None:
            self.settled = self._ended(status, reader.usage)
            if self._on_answer is not None:
                self._on_answer(reader.kept, streamed=True)

    def _ended(self, status: int, usage: Usage | None) -> Event:
        if status >= 400:
            reason, by_instance = f"engine answered {status}", status in _INSTANCE_FAILED
            return Failed(self._request_id, reason, by_instance=by_instance)
        if usage is None:
            return Finished(self._request_id)
        if usage.prompt is not None:
            self._on_counted(usage.prompt)
        return Finished(self._request_id, usage.prompt, usage.completion, usage.cached)


class _Pieces:
    """A stream, as it comes from an engine."""

    def __init__(self, content: EngineAnswer, reader: SseReader | None, stall_s: float) -> None:
        """`reader`: of its events, where they are read."""
        self._content = content
        self._reader = reader
        self._stall_s = stall_s
        self._events = 0
        self._waited_s = 0.0  # for the next event; how long the client takes to read is no part

    async def next(self) -> bytes:
        """Empty: it has ended. Raises TimeoutError: the next event does not come to an end."""
        reader = self._reader
        if reader is None or reader.done:
            return await self._content.readany()
        if reader.events > self._events:
            self._events, self._waited_s = reader.events, 0.0
        elif self._waited_s > self._stall_s:
            raise TimeoutError
        began_s = time.monotonic()
        data = await self._content.readany()
        self._waited_s += time.monotonic() - began_s
        return data


async def _read_some(content: EngineAnswer) -> bytes:
    """What is left, as far as it is worth keeping."""
    found = bytearray()
    while not content.at_eof() and len(found) < _ERROR_BYTES:
        found += await content.read(_ERROR_BYTES - len(found))
    return bytes(found)


def _is_json(answer: bytearray) -> bool:
    """By its ends only: some engines write NaN, which their clients know to read."""
    text = answer.strip()
    return bytes(text[:1] + text[-1:]) in (b"{}", b"[]")
