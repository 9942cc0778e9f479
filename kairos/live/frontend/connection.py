"""A client's connection: what comes on it as HTTP/1.1, and the answers, in order.

Requests for calls go straight to whoever takes them, without ASGI and without a task; all others to
the ASGI application.
"""

import asyncio
import logging
import urllib.parse
from collections.abc import Callable, Mapping
from typing import Any, Protocol, cast

import httptools
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import STATUS_LINE
from uvicorn.server import ServerState

from kairos.live.frontend.asgi import AsgiAnswer
from kairos.live.frontend.exchange import Exchange
from kairos.live.process.pace import LoopPace

logger = logging.getLogger(__name__)

IDLE_S = 75.0  # between two requests
_MAX_HEAD_BYTES = 1 << 16  # of one request: target, names and values of headers
# In which the parser finds no end of anything: a header, or what else it holds back, has no end. A
# head of many short headers has up to four times what is counted of it.
_MAX_ENDLESS_BYTES = 4 * _MAX_HEAD_BYTES

_NO_HTTP = b"Invalid HTTP request received."
_TOO_LARGE = b"The request's headers are too large."


class CallTaker(Protocol):
    """Who answers calls."""

    pace: LoopPace
    targets: Mapping[bytes, str]  # as they are sent, of paths that it takes

    def takes(self, path: str) -> bool: ...

    def take(self, exchange: Exchange) -> None:
        """Answer it, in time. Never raises."""


class HeadTooLarge(Exception):
    """Of a request."""


class Connection(asyncio.Protocol):
    """`data_received`, and the callbacks of the parser."""

    _transport: asyncio.Transport  # once it is made

    write: Callable[[bytes], None]

    def __init__(
        self, app: ASGIApp, calls: CallTaker | None, pace: LoopPace, state: ServerState
    ) -> None:
        self._app, self._calls, self._pace, self._state = app, calls, pace, state
        self._loop = asyncio.get_running_loop()
        self._parser = httptools.HttpRequestParser(self)
        # The first of two requests that came together may have said that it is the last.
        self._parser.set_dangerous_leniencies(lenient_data_after_close=True)
        self._exchange: Exchange | None = None  # that is answered, or is to be
        self._ahead: list[Exchange] = []  # sent before that was answered
        self._coming: Exchange | None = None  # whose body comes
        self._is_new = False  # the exchange that is to be answered has not begun
        self._url, self._head_bytes = b"", 0
        self._headers: list[tuple[bytes, bytes]] = []
        self._expects_continue = False
        self._has_found = False  # a head, a part of a body, or its end, in what came last
        self._endless_bytes = 0  # since it did
        self._is_held = False  # reading
        self.is_full = False
        self._idle_since = 0.0
        self._idle: asyncio.TimerHandle | None = None

    # What comes

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._state.connections.add(self)  # type: ignore[arg-type]  # uvicorn's own protocols
        self.write = self._transport.write

    def data_received(self, data: bytes) -> None:
        self._has_found = False
        try:
            self._parser.feed_data(data)
            self._count_endless(len(data))
        except HeadTooLarge:
            self._refuse(431, _TOO_LARGE)
            return
        except httptools.HttpParserUpgrade:
            pass  # to no other protocol: it is answered as it is
        except httptools.HttpParserError as error:
            too_large = isinstance(error.__context__, HeadTooLarge)
            self._refuse(*((431, _TOO_LARGE) if too_large else (400, _NO_HTTP)))
            return
        if self._is_new:
            self._begin()

    def _count_endless(self, size_bytes: int) -> None:
        """Raises HeadTooLarge. The parser joins what it holds back anew with each read."""
        self._endless_bytes = 0 if self._has_found else self._endless_bytes + size_bytes
        if self._endless_bytes > _MAX_ENDLESS_BYTES:
            raise HeadTooLarge

    def _refuse(self, status: int, reason: bytes) -> None:
        """What comes is no HTTP, so nothing that follows can be."""
        if self._exchange is None or not self._exchange.is_started:
            head = (
                b"%bcontent-type: text/plain; charset=utf-8\r\ncontent-length: %d\r\n"
                b"connection: close\r\n\r\n"
            )
            self._transport.write(head % (STATUS_LINE[status], len(reason)) + reason)
        self._leave()
        self._transport.close()

    def connection_lost(self, error: Exception | None) -> None:  # noqa: ARG002
        self._state.connections.discard(self)
        if self._idle is not None:
            self._idle.cancel()
        self._leave()
        del self._parser  # which names this connection

    def _leave(self) -> None:
        """The client has gone, or will get nothing more."""
        exchange, self._exchange, self._coming = self._exchange, None, None
        ahead, self._ahead = self._ahead, []
        self._is_new = False
        if exchange is not None:
            exchange.leave()
        for each in ahead:
            each.leave()

    def on_message_begin(self) -> None:
        self._url, self._head_bytes = b"", 0
        self._headers, self._expects_continue = [], False

    def on_url(self, url: bytes) -> None:
        self._url += url
        self._head_bytes += len(url)
        if self._head_bytes > _MAX_HEAD_BYTES:
            raise HeadTooLarge

    def on_header(self, name: bytes, value: bytes) -> None:
        self._head_bytes += len(name) + len(value)
        if self._head_bytes > _MAX_HEAD_BYTES:
            raise HeadTooLarge
        name = name.lower()
        self._headers.append((name, value))
        if name == b"expect" and value.lower() == b"100-continue":
            self._expects_continue = True

    def on_headers_complete(self) -> None:
        self._has_found = True
        parser = self._parser
        exchange = Exchange(self, parser.get_method().decode("ascii"), self._headers)
        self._find(exchange)
        exchange.http_version = parser.get_http_version()
        exchange.is_kept = exchange.http_version != "1.0" and parser.should_keep_alive()
        if self._expects_continue:
            exchange.expect_continue()
        self._coming = exchange
        if self._exchange is None:
            self._exchange, self._is_new = exchange, True
        else:
            self._ahead.append(exchange)
            self.hold()

    def _find(self, exchange: Exchange) -> None:
        path = None if self._calls is None else self._calls.targets.get(self._url)
        if path is not None:
            exchange.path, exchange.raw_path = path, self._url
            return
        url = httptools.parse_url(self._url)
        exchange.raw_path, exchange.query = url.path, url.query or b""
        path = url.path.decode("ascii")
        exchange.path = urllib.parse.unquote(path) if "%" in path else path

    def on_body(self, data: bytes) -> None:
        self._has_found = True
        if self._coming is not None:
            self._coming.body_came(data)

    def on_message_complete(self) -> None:
        self._has_found = True
        exchange, self._coming = self._coming, None
        if exchange is not None:
            exchange.body_ended()

    # What is answered

    def _begin(self) -> None:
        self._is_new = False
        exchange = self._exchange
        if exchange is None:
            return
        if self._calls is not None and self._calls.takes(exchange.path):
            self._pace.begin(self._calls.take, exchange)
        elif exchange.method == "GET":  # short: see `LoopPace`
            self._answer(exchange)
        else:
            self._pace.begin(self._answer, exchange)

    def _answer(self, exchange: Exchange) -> None:
        """By the application."""
        info = self._transport.get_extra_info
        answer = AsgiAnswer(exchange, _address(info("sockname")), _address(info("peername")))
        task = self._loop.create_task(answer.run(self._app))
        self._state.tasks.add(task)
        task.add_done_callback(self._state.tasks.discard)

    def answered(self) -> None:
        """See `Wire`."""
        exchange, self._exchange = self._exchange, None
        self._state.total_requests += 1
        if exchange is not None and not exchange.is_kept:
            self._transport.close()
            return
        if self._ahead:
            self._exchange = self._ahead.pop(0)
            self.read_on()
            self._loop.call_soon(self._begin)
            return
        self._idle_since = self._loop.time()
        if self._idle is None:
            self._idle = self._loop.call_later(IDLE_S, self._look)
        if self._is_held:
            self.read_on()

    def _look(self) -> None:
        """One timer serves all answers: when it ends, it is looked since when nothing is asked."""
        self._idle = None
        if self._exchange is not None:
            return
        left_s = self._idle_since + IDLE_S - self._loop.time()
        if left_s <= 0:
            self._transport.close()
        else:
            self._idle = self._loop.call_later(left_s, self._look)

    def shutdown(self) -> None:
        """uvicorn's server wants it to end, once what has come is answered."""
        last = self._ahead[-1] if self._ahead else self._exchange
        if last is None:
            self._transport.close()
        else:
            last.is_kept = False

    def abort(self) -> None:
        self._transport.abort()

    def close(self) -> None:
        """See `Wire`."""
        self._transport.close()

    def hold(self) -> None:
        if not self._is_held:
            self._is_held = True
            self._transport.pause_reading()

    def read_on(self) -> None:
        if self._is_held and not self._ahead:
            self._is_held = False
            self._transport.resume_reading()

    def pause_writing(self) -> None:
        self.is_full = True

    def resume_writing(self) -> None:
        self.is_full = False
        exchange = self._exchange
        if exchange is not None and exchange.answering is not None:
            exchange.answering.client_drained()


def _address(told: Any) -> tuple[str, int | None] | None:
    return (str(told[0]), told[1]) if isinstance(told, tuple) else None
