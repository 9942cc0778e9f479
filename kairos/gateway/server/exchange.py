"""An HTTP request of a client, and the answer to it, on their connection.

A request that is not a call is answered by an ASGI application, in a task of its own.
"""

import asyncio
import logging
from collections.abc import Iterable, MutableMapping
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Protocol

from kairos.core import KairosError
from kairos.gateway.server.openai_errors import INTERNAL_ERROR, whole_error
from kairos.request import CLIENT_KEY, Answering, ASGIApp, BodyReader, BodySource, Client, Scope

if TYPE_CHECKING:
    from kairos.gateway.server.connection import Connection


_PHRASES = {status.value: status.phrase for status in HTTPStatus}
STATUS_LINE = {
    status: f"HTTP/1.1 {status} {_PHRASES.get(status, '')}\r\n".encode()
    for status in range(100, 600)
}
# In what is sent as a header; line breaks are counted.
_CONTROL = bytes({*range(0x20), 0x7F} - set(b"\t\r\n"))
_HIGH_BYTES = 1 << 18  # of a request's body that nobody takes: beyond it the client has to wait
logger = logging.getLogger(__name__)


class UnsafeHeader(Exception):
    """A header of an answer is malformed, or contains a line break."""


class Asking(Client, BodySource, Protocol):
    """A request, as its handler sees it."""

    caller: str
    method: str
    path: str
    raw_path: bytes
    query: bytes
    headers: list[tuple[bytes, bytes]]


class Exchange:
    """A request, its body as it arrives, and its answer: a `Client` and a `BodySource`.

    The head of an answer is sent together with the first part of its body.
    """

    __slots__ = (
        "_head",
        "_held_bytes",
        "_is_chunked",
        "_left_bytes",
        "_parts",
        "_reader",
        "_wire",
        "added",
        "answering",
        "caller",
        "expects_continue",
        "has_left",
        "headers",
        "http_version",
        "is_answered",
        "is_kept",
        "is_started",
        "is_whole",
        "method",
        "path",
        "query",
        "raw_path",
        "refused",
    )

    def __init__(
        self, wire: "Connection", method: str, headers: list[tuple[bytes, bytes]], caller: str
    ) -> None:
        """Create the exchange. Names in `headers` are in lower case.

        `caller` is as in `Access.known_as`: the address, until the caller has shown its key.
        """
        self._wire, self.caller = wire, caller
        self.method, self.headers = method, headers
        self.path, self.raw_path, self.query = "", b"", b""  # the first unquoted
        self.http_version = "1.1"
        self.is_kept = True  # the connection, after the answer
        self.refused: KairosError | None = None  # answered with this error, by the connection
        self.has_left = False  # the client
        self.is_started = self.is_answered = False
        self.is_whole = False  # the request's body
        self.answering: Answering | None = None
        self.added: list[tuple[bytes, bytes]] = []  # headers to add to any answer
        self.expects_continue = False  # the client waits for `100 Continue` to send its body
        self._parts: list[bytes] = []
        self._held_bytes = 0  # in them
        self._reader: BodyReader | None = None
        self._head: bytes | None = None  # not sent yet
        self._is_chunked = False
        self._left_bytes: int | None = 0  # of an answer of known length; None: until it is closed

    # The request's body

    def on_body_chunk(self, data: bytes) -> None:
        if not self.is_answered:
            self._parts.append(data)
            self._held_bytes += len(data)
            if self._reader is not None:
                self._reader.body_came()
            if self._held_bytes > _HIGH_BYTES:
                self._wire.pause_reading()

    def on_body_end(self) -> None:
        self.is_whole = True
        if self._reader is not None:
            self._reader.body_came()

    def take_body(self) -> tuple[bytes, bool]:
        parts = self._parts
        if not parts:
            return b"", self.is_whole
        data = parts[0] if len(parts) == 1 else b"".join(parts)
        parts.clear()
        if self._held_bytes > _HIGH_BYTES:
            self._wire.resume_reading()
        self._held_bytes = 0
        return data, self.is_whole

    def read_body_by(self, reader: BodyReader | None) -> None:
        self._reader = reader
        if reader is None:
            return
        if self.is_whole:
            reader.body_came()
        elif self.expects_continue and not self.has_left:
            self.expects_continue = False
            self._wire.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    # The answer

    def refuse(self, error: KairosError) -> None:
        """Answer with an error, in OpenAI's format."""
        headers, content = whole_error(error)
        offers = [(b"upgrade", b"HTTP/1.1")] if error.status == 426 else []
        self.start(error.status, headers + offers)
        self.write(content, more=False)

    def start(self, status: int, headers: Iterable[tuple[bytes, bytes]]) -> None:
        """Start the answer. Raises UnsafeHeader: A header is malformed."""
        if self.has_left:
            return
        assert not self.is_started
        lines = [STATUS_LINE[status]]
        self._is_chunked = self.method != "HEAD" and status not in (204, 304)
        for name, value in headers:
            if name == b"content-length":
                self._is_chunked = False
                self._left_bytes = int(value)
            elif name == b"connection":  # ours to say
                self.is_kept &= value.strip().lower() != b"close"
                continue
            lines.append(b"%b: %b\r\n" % (name, value))
        if self.added:
            lines += [b"%b: %b\r\n" % each for each in self.added]
        if self._is_chunked and self.http_version != "1.1":
            self._is_chunked, self._left_bytes = False, None
        if not self.is_kept:
            lines.append(b"connection: close\r\n")
        if self._is_chunked:
            lines.append(b"transfer-encoding: chunked\r\n")
        head = _checked(lines)
        self.is_started, self.expects_continue = True, False
        self._head = head + b"\r\n"

    def write(self, data: bytes, *, more: bool) -> bool:
        if self.has_left:
            return True
        assert self.is_started
        assert not self.is_answered
        if self.method == "HEAD":
            data, self._left_bytes = b"", 0
        elif self._is_chunked:
            data = b"%x\r\n%b\r\n" % (len(data), data) if data else b""
            if not more:
                data += b"0\r\n\r\n"
        elif self._left_bytes is not None:
            self._left_bytes -= len(data)
            assert self._left_bytes >= 0, "longer than it was said to be"
        head, self._head = self._head, None
        self._wire.write(data if head is None else head + data)
        if not more:
            assert not self._left_bytes, "shorter than it was said to be"
            self.is_answered = True
            self.answering = None
            self._wire.finish_answer()
            return True
        return not self._wire.is_full

    @property
    def keeps_up(self) -> bool:
        return not self._wire.is_full

    def cut_off(self) -> None:
        """Close the connection amid the answer; do nothing if the answer is complete."""
        if self.is_answered or self.has_left:
            return
        head, self._head = self._head, None
        if head is not None:
            self._wire.write(head)
        if self._left_bytes is None:  # its end would be taken for that of the whole
            self._wire.reset()
        else:
            self._wire.close()

    def note_client_left(self) -> None:
        self.has_left = True
        if self.answering is not None:  # thousands may leave at once
            self._wire.in_turn(self.caller, self._tell_answering)

    def _tell_answering(self) -> None:
        answering, self.answering = self.answering, None
        if answering is not None:
            answering.client_left()


def _checked(lines: list[bytes]) -> bytes:
    """Return the head that the lines make.

    Raises UnsafeHeader: A line contains a line break or a control character.
    """
    head = b"".join(lines)
    if head.count(b"\n") != len(lines) or head.count(b"\r") != len(lines):
        raise UnsafeHeader
    if len(head.translate(None, _CONTROL)) != len(head):
        raise UnsafeHeader
    return head


class AsgiAnswer:
    """An exchange with an application: passes it the request, and takes its answer."""

    def __init__(self, exchange: Exchange, server: Any, client: Any, scheme: str = "http") -> None:
        """Create it. `server` and `client` are host and port."""
        self._exchange = exchange
        self._changed = asyncio.Event()
        self._has_all = False  # of the request's body
        self._scope: Scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": exchange.http_version,
            "server": server,
            "client": client,
            "scheme": scheme,
            "root_path": "",
            # The exchange leaves out the body that HEAD does not want.
            "method": "GET" if exchange.method == "HEAD" else exchange.method,
            "path": exchange.path,
            "raw_path": exchange.raw_path,
            "query_string": exchange.query,
            "headers": exchange.headers,
            "state": {},
            CLIENT_KEY: exchange,
        }

    async def run(self, app: ASGIApp) -> None:
        exchange = self._exchange
        exchange.answering = self
        try:
            await app(self._scope, self._receive, self._send)
        except Exception:  # the last resort
            logger.exception("an answer met an error of Kairos's own")
            if not exchange.is_started and not exchange.has_left:
                exchange.refuse(INTERNAL_ERROR)
        finally:
            exchange.cut_off()
            exchange.read_body_by(None)
            if exchange.answering is self:
                exchange.answering = None
            del self._scope[CLIENT_KEY]  # else both would wait for the garbage collector

    def client_left(self) -> None:
        self._changed.set()

    def client_drained(self) -> None:
        self._changed.set()

    def body_came(self) -> None:
        self._changed.set()

    async def _receive(self) -> MutableMapping[str, Any]:
        exchange = self._exchange
        exchange.read_body_by(self)
        while not exchange.has_left and not exchange.is_answered:
            body, is_whole = exchange.take_body()
            if body or (is_whole and not self._has_all):
                self._has_all = is_whole
                return {"type": "http.request", "body": body, "more_body": not is_whole}
            await self._change()
        return {"type": "http.disconnect"}

    async def _send(self, message: MutableMapping[str, Any]) -> None:
        exchange = self._exchange
        if message["type"] == "http.response.start":
            exchange.start(message["status"], message["headers"])
            return
        exchange.write(message.get("body", b""), more=message.get("more_body", False))
        if exchange.is_answered:
            self._changed.set()
        while not exchange.keeps_up and not exchange.is_answered and not exchange.has_left:
            await self._change()

    async def _change(self) -> None:
        self._changed.clear()
        await self._changed.wait()
