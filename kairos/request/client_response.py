"""The client's side of a call: the response, and its headers of errors and remaining quota."""

import json
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any, Protocol

from kairos.core import RAW_HEADERS, Header, KairosError, RateLimit, RateLimits
from kairos.request.routes import Dialect

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
ASGIApp = Callable[[Scope, Receive, Send], Awaitable[None]]

_EVENT_ENDS = (b"\n\n", b"\r\n\r\n")
# What readers of streams ignore.
_WAITING: dict[Dialect, bytes] = {
    "openai": b": waiting for an instance\n\n",
    "anthropic": b'event: ping\ndata: {"type": "ping"}\n\n',
}
_ANTHROPIC_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    503: "overloaded_error",
    504: "timeout_error",
}


CLIENT_KEY = "kairos.client"  # in a scope: the `Client` that asked

# OpenAI's and Anthropic's clients wait for no longer than this, and ask again at once instead.
_SHORT_S = 60
_REASON, _REQUEST_ID = RAW_HEADERS[Header.REASON], RAW_HEADERS[Header.REQUEST_ID]

PREFIX = b"x-ratelimit-"

Headers = list[tuple[bytes, bytes]]


class Answering(Protocol):
    """A handler of a client's request."""

    def client_left(self) -> None:
        """Note that the client has left; called once."""

    def client_drained(self) -> None:
        """Note that the client keeps up again: see `Client.write`."""


class Client(Protocol):
    """Client of a request. Sending to it never blocks."""

    answering: Answering | None  # None: nobody has to know
    has_left: bool

    def start(self, status: int, headers: Iterable[tuple[bytes, bytes]]) -> None: ...

    def write(self, data: bytes, *, more: bool) -> bool:
        """Send a part of the body. Return whether the client keeps up.

        If not, the handler should pause until its `client_drained` is called.
        """

    def cut_off(self) -> None:
        """End an answer that has begun so that it is recognisably incomplete."""


class ClientResponse:
    __slots__ = (
        "_event",
        "_is_kept_alive",
        "_latest",
        "caller",
        "client",
        "held_bytes",
        "limits",
        "protocol",
        "request_id",
        "started",
        "streams",
    )

    def __init__(self, request_id: str, client: Client, caller: str = "") -> None:
        """Create the response. `caller` is the name for shares of what all callers use."""
        self.request_id = request_id
        self.client, self.caller = client, caller
        self.started = False  # it has the beginning of an answer, or of an error
        self.streams = False
        self.protocol: Dialect = "openai"  # in which the client is answered
        self.held_bytes = 0  # of the client's body
        self.limits: RateLimits | None = None  # what is left of its quotas
        self._is_kept_alive = False
        self._event: bytearray | None = None  # what is answered becomes one, when it is whole
        self._latest = b""  # of what was written

    def keep_alive(self) -> None:
        """Send a comment, or a ping, in a silent stream.

        Before the answer begins, the first one sends status 200, so that all after it are events.
        """
        if not self.started and not self._is_kept_alive:
            self._is_kept_alive = self.streams = True
            self._start(200, [(b"content-type", b"text/event-stream; charset=utf-8")])
        if self.streams and self._event is None and self._is_between_events:
            self.write(_WAITING[self.protocol], more=True)

    def start(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        self.started = True
        if not self._is_kept_alive:
            self._start(status, headers)
        elif status != 200 or not _is_stream(headers):
            self._event = bytearray()

    def write(self, data: bytes, *, more: bool) -> bool:
        if self._event is not None:
            self._event += data
            if more:
                return True
            data, self._event = self._as_event(bytes(self._event)), None
        self._latest = data
        return self.client.write(data, more=more)

    def _start(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        if self.limits is not None:
            headers = with_limits(headers, self.limits)
        headers.append((_REQUEST_ID, self.request_id.encode()))
        if self.protocol == "anthropic":
            headers.append((b"request-id", self.request_id.encode()))
        self.client.start(status, headers)

    def fail(self, error: KairosError) -> None:
        """Send an error in the route's format: as a response, or as an event in the stream.

        A begun response that is not a stream can only be cut off, and so can a stream within an
        event, since the error would become a part of that event.
        """
        payload = json.dumps(error_body(error, self.protocol)).encode()
        if error.limits is not None:
            self.limits = error.limits
        if not self.started:
            length = (b"content-length", b"%d" % len(payload))
            self.start(error.status, [*error_headers(error), length])
            self.write(payload, more=False)
        elif self.streams and self._is_between_events:
            self.client.write(self._as_event(payload), more=False)
        else:
            self.client.cut_off()

    def _as_event(self, payload: bytes) -> bytes:
        """Return the last event of a stream: an error, or a complete answer."""
        lines = b"data: " + payload.replace(b"\n", b"\ndata: ") + b"\n\n"
        if self.protocol == "anthropic":
            return b"event: error\n" + lines
        return lines + b"data: [DONE]\n\n"

    @property
    def _is_between_events(self) -> bool:
        return not self._latest or self._latest.endswith(_EVENT_ENDS)


def _is_stream(headers: list[tuple[bytes, bytes]]) -> bool:
    kinds = [value for name, value in headers if name == b"content-type"]
    return any(kind.startswith(b"text/event-stream") for kind in kinds)


def error_headers(error: KairosError) -> list[tuple[bytes, bytes]]:
    headers = [(b"content-type", b"application/json"), (_REASON, error.code.encode())]
    if error.retry_after_s is not None:
        headers.append((b"retry-after", str(error.retry_after_s).encode()))
    if not error.retries or (error.retry_after_s or 0) > _SHORT_S:
        headers.append((b"x-should-retry", b"false"))
    if error.allowed is not None:
        headers.append((b"allow", error.allowed.encode()))
    return headers


def error_body(error: KairosError, protocol: Dialect = "openai") -> dict[str, Any]:
    """Return the body of an error in OpenAI's or Anthropic's format."""
    if protocol == "anthropic":
        kind = _ANTHROPIC_TYPES.get(error.status)
        if kind is None:
            kind = "invalid_request_error" if error.status < 500 else "api_error"
        return {"type": "error", "error": {"type": kind, "message": str(error), "code": error.code}}
    kind = "invalid_request_error" if error.status < 500 else "server_error"
    told = {"message": str(error), "type": kind, "param": error.param, "code": error.code}
    return {"error": told}


def with_limits(headers: Headers, limits: RateLimits) -> Headers:
    """Return the headers with these limits, in place of the engine's own."""
    ours = [each for each in headers if not each[0].startswith(PREFIX)]
    for what, limit in ((b"requests", limits.requests), (b"tokens", limits.tokens)):
        if limit is not None:
            ours += _limit_headers(what, limit)
    return ours


def _limit_headers(what: bytes, limit: RateLimit) -> Headers:
    return [
        (b"x-ratelimit-limit-" + what, b"%d" % limit.limit),
        (b"x-ratelimit-remaining-" + what, b"%d" % limit.remaining),
        (b"x-ratelimit-reset-" + what, _duration(limit.reset_us).encode()),
    ]


def _duration(us: int) -> str:
    """Return a duration in OpenAI's format: `17ms`, `7.66s`, `6m0s`, `23h59m0s`. Rounded up."""
    ms = -(-us // 1_000)
    if 0 < ms < 1_000:
        return f"{ms}ms"
    minutes, rest = divmod(ms, 60_000)
    seconds = f"{rest / 1_000:g}s"
    if not minutes:
        return seconds
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes}m{seconds}" if hours else f"{minutes}m{seconds}"
