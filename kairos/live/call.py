"""One LLM call from the client's request to its last byte."""

import asyncio
import json
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Protocol

import aiohttp

from kairos.errors import DeadlinePassed, KairosError, UpstreamFailed, UpstreamUnreachable
from kairos.events import (
    Arrived,
    Cancelled,
    Dispatch,
    Event,
    Failed,
    Finished,
    FirstToken,
    WorkflowEnded,
)
from kairos.live.body import Body
from kairos.live.engine import HttpEngine
from kairos.live.identity.conversation import MAX_ANSWER_BYTES
from kairos.live.sse import SseReader, Usage, usage_of
from kairos.model import SECOND, Request

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
OnTrouble = Callable[[UpstreamUnreachable], None]
OnCounted = Callable[[int], None]

STREAMING_ROUTES = {"/v1/chat/completions", "/v1/completions", "/v1/responses"}

# By it vLLM orders what waits inside it, lower first. It wins over the body's `priority`.
_PRIORITY = "X-Vllm-Priority"
# Of the client's headers only these go on: credentials, and headers by which vLLM can be steered
# past the queue (`X-Vllm-Priority`), do not.
_FORWARDED = (b"content-type", b"accept", b"traceparent", b"tracestate", b"baggage", b"user-agent")
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


class Exchange:
    """The client's side of a call: what is sent to it, and whether it is still there."""

    def __init__(self, request_id: str, send: Send) -> None:
        self.request_id = request_id
        self.started = False
        self.streams = False
        self.client_left = False
        self.told_engine_error = False  # inside the stream
        self.held_bytes = 0  # of the client's body
        self._amid_event = False
        self._send = send

    async def start(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        headers.append((b"x-request-id", self.request_id.encode()))
        self.started = True
        await self._send({"type": "http.response.start", "status": status, "headers": headers})

    async def body(self, data: bytes, *, more: bool) -> None:
        self._amid_event = not data.endswith((b"\n\n", b"\r\n\r\n"))
        await self._send({"type": "http.response.body", "body": data, "more_body": more})

    async def fail(self, error: KairosError) -> None:
        """Tell the client, in OpenAI's format: as a response, or inside the stream that began.

        A response that is neither a stream nor unstarted can only be cut off, and so can a stream
        amid an event, of which an error that follows would become a part: the server closes the
        connection when the call ends without its last part.
        """
        payload = json.dumps(error_body(error)).encode()
        if not self.started:
            length = (b"content-length", str(len(payload)).encode())
            await self.start(error.status, [*error_headers(error), length])
            await self.body(payload, more=False)
        elif self.streams and not self._amid_event:
            await self.body(b"data: " + payload + b"\n\ndata: [DONE]\n\n", more=False)


def error_headers(error: KairosError) -> list[tuple[bytes, bytes]]:
    headers = [(b"content-type", b"application/json")]
    if error.retry_after_s is not None:
        headers.append((b"retry-after", str(error.retry_after_s).encode()))
    return headers


def error_body(error: KairosError) -> dict[str, Any]:
    kind = "invalid_request_error" if error.status < 500 else "server_error"
    return {"error": {"message": str(error), "type": kind, "param": None, "code": error.code}}


class OnAnswer(Protocol):
    def __call__(self, answer: bytes | bytearray, *, streamed: bool) -> None: ...


class Desk(Protocol):
    """Where a call's facts are told: the runtime, or whoever passes them on to one elsewhere."""

    def now(self) -> int: ...

    def feed(self, event: Event) -> None:
        """Raises KairosError: the request that arrived is refused."""


class Call:
    """Waits for its turn, sends the request to the engine it is given, forwards the answer.

    Whatever happens, the balancer is told exactly one of Finished, Failed and Cancelled.
    """

    def __init__(
        self,
        request: Request,
        scope: Scope,
        body: Body,
        desk: Desk,
        engine: HttpEngine,
        on_trouble: OnTrouble,
        *,
        on_counted: OnCounted = lambda _: None,
        on_answer: OnAnswer | None = None,
        deadline: int | None = None,
        ends_workflow: bool = False,
    ) -> None:
        """`on_trouble` hears of an instance that could not be reached before the balancer hears of
        the call, so that no other call follows it there; `on_counted`, how many tokens the prompt
        has in truth; `on_answer`, before the client has all of it, what the engine answered, and
        whether as a stream: nothing of one over `MAX_ANSWER_BYTES`. `deadline`: nobody waits after
        that instant. `ends_workflow`: nothing of it comes after the call."""
        self._request = request
        self._scope = scope
        self._body = body
        self._desk = desk
        self._engine = engine
        self._on_trouble = on_trouble
        self._on_counted = on_counted
        self._on_answer = on_answer
        self._deadline = deadline
        self._ends_workflow = ends_workflow
        # /v1/responses ends its streams with an event of its own, the older two with [DONE]; what
        # other routes stream we only pass on.
        self._reads_stream = scope["path"] in STREAMING_ROUTES

    async def run(self, exchange: Exchange, receive: Receive) -> None:
        """Serve the call. A client that leaves ends it, wherever it is.

        Raises:
            KairosError: it ended without a whole answer, and the client is still there.
        """
        remaining_s = self._remaining_s()
        request_id = self._request.id
        turn = self._engine.expect(request_id)
        try:
            self._desk.feed(Arrived(self._request))
        except KairosError:
            self._engine.forget(request_id)
            raise
        call = asyncio.current_task()
        assert call is not None
        watcher = asyncio.create_task(_watch(exchange, receive, call))
        outcome: Event = Cancelled(request_id)
        try:
            async with asyncio.timeout(remaining_s) as limit:
                outcome = await self._forward(await turn, exchange)
        except TimeoutError:
            if not limit.expired():
                raise
            raise DeadlinePassed from None
        except KairosError as error:
            outcome = Failed(request_id, error.code)
            if isinstance(error, UpstreamUnreachable):
                self._on_trouble(error)
            raise
        except asyncio.CancelledError:
            if not exchange.client_left:
                raise
            call.uncancel()
            if exchange.told_engine_error:  # at which clients leave, without reading to the end
                outcome = Failed(request_id, _ERROR_IN_STREAM)
        finally:
            watcher.cancel()
            self._engine.forget(request_id)
            self._desk.feed(outcome)
            if self._ends_workflow:
                self._desk.feed(WorkflowEnded(self._request.tenant, self._request.workflow_id))

    def _remaining_s(self) -> float | None:
        """None: there is no deadline. Raises DeadlinePassed."""
        if self._deadline is None:
            return None
        remaining_s = (self._deadline - self._desk.now()) / SECOND
        if remaining_s <= 0:
            raise DeadlinePassed
        return remaining_s

    async def _forward(self, turn: Dispatch, exchange: Exchange) -> Event:
        instance_id = turn.instance_id
        upstream = self._engine.upstreams.get(instance_id)
        if upstream is None:  # another process of the pool decided
            raise UpstreamFailed(
                f"instance {instance_id} was chosen, which this process does not know: all "
                "processes of a pool must name the same engines"
            )
        url = upstream.url(self._scope["path"], self._scope["query_string"].decode("latin-1"))
        headers = {"X-Request-Id": self._request.id, **upstream.headers}
        for name, value in self._scope["headers"]:
            if name in _FORWARDED:
                headers[name.decode("latin-1")] = value.decode("latin-1")
        if turn.priority is not None:
            headers[_PRIORITY] = str(turn.priority)
        method = self._scope["method"]
        response = await self._engine.send(instance_id, method, url, headers, self._body.content)
        try:
            return await self._forward_answer(instance_id, response, exchange)
        except asyncio.CancelledError:  # nobody waits for the rest
            response.close()
            raise
        except (aiohttp.ClientError, OSError) as error:
            cause = type(error).__name__
            if not exchange.started:
                raise UpstreamUnreachable(instance_id, cause, refused=False) from error
            raise UpstreamFailed(
                f"instance {instance_id} broke off its answer ({cause})"
            ) from error
        finally:
            response.release()

    async def _forward_answer(
        self, instance_id: str, response: aiohttp.ClientResponse, exchange: Exchange
    ) -> Event:
        if 300 <= response.status < 400:
            # Neither we nor the client, who would go around the queue, should go there.
            raise UpstreamFailed(f"instance {instance_id} answered {response.status}, a redirect")
        headers = [
            (name.lower(), value)
            for name, value in response.raw_headers
            if name.lower() not in _HOP_BY_HOP
        ]
        if response.content_type == "text/event-stream":
            exchange.streams = True
            return await self._forward_stream(instance_id, response, headers, exchange)
        if response.content_type == "application/json":
            return await self._forward_json(response, headers, exchange)
        await exchange.start(response.status, headers)
        async for data in response.content.iter_any():
            await exchange.body(data, more=True)
        await exchange.body(b"", more=False)
        return self._ended(response.status, None)

    async def _forward_json(
        self,
        response: aiohttp.ClientResponse,
        headers: list[tuple[bytes, bytes]],
        exchange: Exchange,
    ) -> Event:
        """Forward the answer whole, so that it has a length and its usage can be read; one that
        is very large, as it comes."""
        content, answer = response.content, bytearray()
        while not content.at_eof() and len(answer) <= _USAGE_LIMIT_BYTES:
            answer += await content.readany()
        if content.at_eof():
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
        response: aiohttp.ClientResponse,
        headers: list[tuple[bytes, bytes]],
        exchange: Exchange,
    ) -> Event:
        keep_bytes = MAX_ANSWER_BYTES if self._on_answer is not None else 0
        reader = SseReader(drop_usage_chunk=self._body.usage_added, keep_bytes=keep_bytes)
        self._engine.streams[self._request.id] = reader
        content = response.content
        while not content.at_eof():
            data = await content.readany()
            if not exchange.started:
                # Only now: until the engine's first byte, a failure can still be a plain error.
                await exchange.start(response.status, headers)
                self._desk.feed(FirstToken(self._request.id))
            if self._reads_stream:
                was_done = reader.done
                data = reader.feed(data)
                exchange.told_engine_error = reader.error is not None
                if self._on_answer is not None and reader.done and not was_done:
                    self._on_answer(reader.kept, streamed=True)
            if data:
                await exchange.body(data, more=True)
        if self._reads_stream and not reader.done:
            raise UpstreamFailed(f"instance {instance_id} ended its stream before it was complete")
        if not exchange.started:
            await exchange.start(response.status, headers)
        await exchange.body(reader.rest(), more=False)
        if reader.error is not None:
            return Failed(self._request.id, _ERROR_IN_STREAM)
        return self._ended(response.status, reader.usage)

    def _ended(self, status: int, usage: Usage | None) -> Event:
        if status >= 400:
            return Failed(self._request.id, f"engine answered {status}")
        if usage is None:
            return Finished(self._request.id)
        if usage.prompt is not None:
            self._on_counted(usage.prompt)
        return Finished(self._request.id, usage.prompt, usage.completion, usage.cached)


async def _watch(exchange: Exchange, receive: Receive, call: asyncio.Task[Any]) -> None:
    """Cancel the call when its client goes; the body has been read, so nothing else comes."""
    while (await receive())["type"] != "http.disconnect":
        pass
    exchange.client_left = True
    call.cancel()
