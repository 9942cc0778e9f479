"""The client's side of a call."""

import json
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any, Protocol

from kairos.errors import KairosError
from kairos.header_names import RAW, REASON

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

_WAITING = b": waiting for an instance\n\n"  # which readers of streams pass over


CLIENT = "kairos.client"  # in a scope: the `Client` that asked

_REASON = RAW[REASON]


class Client(Protocol):
    """Who asked, and takes the answer: nothing of what is sent to it waits for anything."""

    leaving: "Leaving"

    def start(self, status: int, headers: Iterable[tuple[bytes, bytes]]) -> None: ...

    def write(self, data: bytes, *, more: bool) -> bool:
        """Send a part of the body. Returns whether the client keeps up: else what comes next should
        wait until it has `drained`."""

    async def drained(self) -> None: ...

    def take_body(self) -> bytes | None:
        """What was sent with the request; None: not all of it is here yet."""


class Leaving:
    """Tells the call, once, that its client has gone."""

    def __init__(self) -> None:
        self._has_left = False
        self._on_leave: Callable[[], None] | None = None

    def leave(self) -> None:
        self._has_left = True
        on_leave, self._on_leave = self._on_leave, None
        if on_leave is not None:
            on_leave()

    def watch(self, on_leave: Callable[[], None]) -> None:
        """It is called when the client goes, or at once if it has gone."""
        self._on_leave = on_leave
        if self._has_left:
            self.leave()

    def stop(self) -> None:
        """Nobody needs to know any more."""
        self._on_leave = None


class ClientResponse:
    """What is sent to the client, and whether it is still there."""

    def __init__(self, request_id: str, client: Client) -> None:
        self.request_id = request_id
        self.started = False  # it has the beginning of an answer, or of an error
        self.streams = False
        self.client_left = False
        self.held_bytes = 0  # of the client's body
        self._is_kept_alive = False
        self._event: bytearray | None = None  # what is answered becomes one, when it is whole
        self._amid_event = False
        self._client = client

    async def keep_alive(self) -> None:
        """Send a comment, before anything else comes in a stream. With the first goes status 200:
        whatever comes after it comes as events."""
        if not self._is_kept_alive:
            self._is_kept_alive = self.streams = True
            await self._start(200, [(b"content-type", b"text/event-stream; charset=utf-8")])
        await self._body(_WAITING, more=True)

    async def start(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        self.started = True
        if not self._is_kept_alive:
            await self._start(status, headers)
        elif status != 200 or not _is_stream(headers):
            self._event = bytearray()

    async def body(self, data: bytes, *, more: bool) -> None:
        if self._event is None:
            await self._body(data, more=more)
            return
        self._event += data
        if not more:
            await self._body(_as_event(bytes(self._event)), more=False)

    def write(self, data: bytes) -> bool:
        """What `body` does with all but the last part, without waiting: see `Client.write`."""
        if self._event is not None:
            self._event += data
            return True
        return self._write(data, more=True)

    async def drained(self) -> None:
        await self._client.drained()

    def take_body(self) -> bytes | None:
        """See `Client`."""
        return self._client.take_body()

    async def _start(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        headers.append((b"x-request-id", self.request_id.encode()))
        self._client.start(status, headers)

    async def _body(self, data: bytes, *, more: bool) -> None:
        if not self._write(data, more=more):
            await self._client.drained()

    def _write(self, data: bytes, *, more: bool) -> bool:
        self._amid_event = not data.endswith((b"\n\n", b"\r\n\r\n"))
        return self._client.write(data, more=more)

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
            await self._body(_as_event(payload), more=False)


def _is_stream(headers: list[tuple[bytes, bytes]]) -> bool:
    kinds = [value for name, value in headers if name == b"content-type"]
    return any(kind.startswith(b"text/event-stream") for kind in kinds)


def _as_event(payload: bytes) -> bytes:
    """The last event of a stream."""
    return b"data: " + payload.replace(b"\n", b"\ndata: ") + b"\n\ndata: [DONE]\n\n"


def error_headers(error: KairosError) -> list[tuple[bytes, bytes]]:
    headers = [(b"content-type", b"application/json"), (_REASON, error.code.encode())]
    if error.retry_after_s is not None:
        headers.append((b"retry-after", str(error.retry_after_s).encode()))
    return headers


def error_body(error: KairosError) -> dict[str, Any]:
    kind = "invalid_request_error" if error.status < 500 else "server_error"
    return {"error": {"message": str(error), "type": kind, "param": None, "code": error.code}}
