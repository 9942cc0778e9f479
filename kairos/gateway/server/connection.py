"""A client's connection: its requests, and the answers, in order.

Calls go straight to the gateway, without ASGI and without a task; all other requests to the ASGI
application.
"""

import asyncio
import socket
import struct
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, cast

from kairos.gateway.server.connection_limits import ClientAddress
from kairos.gateway.server.exchange import STATUS_LINE, AsgiAnswer, Exchange
from kairos.gateway.server.request_reader import HeadTooLarge, NoHttp, OtherVersion, RequestReader

if TYPE_CHECKING:
    from kairos.gateway.server.http import HttpServer

_NO_HTTP = b"Invalid HTTP request received."
_NO_HTTP2 = b"HTTP/2 is not spoken here: let the client use HTTP/1.1."
_TOO_LARGE = b"The request's headers are too large."
_TOO_SLOW = b"The request's headers did not come in time."


_NO_LINGER = struct.pack("ii", 1, 0)  # what is closed is reset
_NO_TARGETS: Mapping[bytes, str] = {}


class Connection(asyncio.Protocol):
    """Protocol of a client's connection. An exchange writes to it; its limits may close it."""

    _transport: asyncio.Transport  # once it is made
    _peer: ClientAddress  # once it may stay

    write: Callable[[bytes], None]

    def __init__(self, server: "HttpServer") -> None:
        self._server, self._calls, self._pace = server, server.calls, server.pace
        self._limits, self._pages = server.limits, server.pages
        self._loop = asyncio.get_running_loop()
        calls = server.calls
        self._reader = RequestReader(self, _NO_TARGETS if calls is None else calls.targets)
        self._unread: list[bytes] = []  # what came where there was no time to read it
        self._awaits_head = True  # and the limits know it
        self._exchange: Exchange | None = None  # that is answered, or is to be
        self._ahead: list[Exchange] = []  # sent before that was answered
        self._is_new = False  # the exchange that is to be answered has not begun
        self._is_held = False  # reading
        self.is_full = False
        self._idle_since = 0.0
        self._idle: asyncio.TimerHandle | None = None

    # What comes

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        peer = self._limits.admit_connection(self, self._transport)
        if peer is None:  # it is this one's no more
            return
        self._peer, self.caller = peer, peer.name
        self._server.connections.add(self)
        self.write = self._transport.write

    def data_received(self, data: bytes) -> None:
        if self._unread:
            self._unread.append(data)
            self.pause_reading()
        elif self._pace.may_begin():
            self._parse_data(data, at_once=True)
        else:  # thousands may ask at once
            self._unread.append(data)
            self._pace.wait((self.caller, "reads"), self._resume_reading)

    def _resume_reading(self) -> None:
        unread, self._unread = self._unread, []
        if unread:
            self.resume_reading()
            self._parse_data(b"".join(unread))

    def _parse_data(self, data: bytes, *, at_once: bool = False) -> None:
        """Parse data. `at_once`: the requests in it may be started immediately."""
        reader = self._reader
        try:
            reader.feed(data)
        except HeadTooLarge:
            self._refuse_malformed(431, _TOO_LARGE)
            return
        except OtherVersion:
            self._refuse_malformed(505, _NO_HTTP2)
            return
        except NoHttp:
            self._refuse_malformed(400, _NO_HTTP)
            return
        if reader.is_in_head and not self._awaits_head:
            self._awaits_head = True
            self._limits.awaits_head(self, self._peer)
        if self._is_new:
            self._begin_exchange(at_once=at_once)

    def head_is_late(self) -> None:
        """Close the connection, whose request head took too long."""
        if self._reader.is_in_head:
            self._refuse_malformed(408, _TOO_SLOW)
        else:
            self._transport.close()

    @property
    def is_idle(self) -> bool:
        """Whether all requests have been answered."""
        return self._exchange is None and not self._awaits_head and not self._unread

    def _refuse_malformed(self, status: int, reason: bytes) -> None:
        """Answer with an error and close: what follows malformed HTTP cannot be parsed."""
        if self._exchange is None or not self._exchange.is_started:
            head = (
                b"%bcontent-type: text/plain; charset=utf-8\r\ncontent-length: %d\r\n"
                b"connection: close\r\n\r\n"
            )
            self._transport.write(head % (STATUS_LINE[status], len(reason)) + reason)
        self._abandon_exchanges()
        self._transport.close()

    def eof_received(self) -> bool:
        """Close: the client has left."""
        self._limits.close_soon(self._transport)
        return True

    def connection_lost(self, error: Exception | None) -> None:  # noqa: ARG002
        self._server.connections.discard(self)
        self._limits.forget_connection(self, self._peer)
        if self._idle is not None:
            self._idle.cancel()
        self._abandon_exchanges()
        self._unread.clear()
        self._reader.release_parser()
        del self._reader  # which names this connection

    def in_turn(self, caller: str, step: Callable[[], None]) -> None:
        """Queue a step of a caller that has left at the loop's pace: other calls go first."""
        self._pace.begin_step((caller, "leaves"), step)

    def _abandon_exchanges(self) -> None:
        """Abandon all exchanges: the client has gone, or will get nothing more."""
        exchange, self._exchange = self._exchange, None
        ahead, self._ahead = self._ahead, []
        self._is_new = False
        self._reader.drop_request()
        if exchange is not None:
            exchange.note_client_left()
        for each in ahead:
            each.note_client_left()

    def on_head(self, exchange: Exchange) -> None:
        """Take a request whose head is complete; its body may still arrive."""
        if self._pages is not None:
            self._pages.admit_page(exchange)
        if self._awaits_head:
            self._awaits_head = False
            self._limits.has_head(self, self._peer)
        if self._exchange is None:
            self._exchange, self._is_new = exchange, True
        else:
            self._ahead.append(exchange)
            self.pause_reading()

    # What is answered

    def _begin_exchange(self, *, at_once: bool = False) -> None:
        self._is_new = False
        exchange = self._exchange
        if exchange is None:
            return
        if exchange.refused is not None:
            exchange.refuse(exchange.refused)
            return
        calls = self._calls
        if self._pages is not None and exchange.method == "OPTIONS":
            is_call = calls is not None and calls.is_hot(exchange)
            self._pages.answer_options(exchange, is_call=is_call)
            return
        if calls is not None and calls.takes(exchange):
            if at_once or self._pace.may_begin():
                calls.start_call(exchange)
            else:
                self._pace.wait(calls.caller_of(exchange), calls.start_call, exchange)
        elif exchange.method == "GET":  # short: see `LoopPace`
            self._answer_by_app(exchange)
        else:
            self._pace.begin_step(exchange.caller, self._answer_by_app, exchange)

    def _answer_by_app(self, exchange: Exchange) -> None:
        info = self._transport.get_extra_info
        ends = _address(info("sockname")), _address(info("peername"))
        scheme = "http" if info("ssl_object") is None else "https"
        answer = AsgiAnswer(exchange, *ends, scheme)
        task = self._loop.create_task(answer.run(self._server.app))
        self._server.tasks.add(task)
        task.add_done_callback(self._server.tasks.discard)

    def finish_answer(self) -> None:
        """Continue after an answer has been written completely."""
        exchange, self._exchange = self._exchange, None
        if exchange is not None and not exchange.is_kept:
            self._transport.close()
            return
        if self._ahead:
            self._exchange = self._ahead.pop(0)
            self.resume_reading()
            self._loop.call_soon(self._begin_exchange)
            return
        self._idle_since = self._loop.time()
        if self._idle is None:
            self._idle = self._loop.call_later(self._limits.idle_s, self._close_if_idle)
        if self._is_held:
            self.resume_reading()

    def _close_if_idle(self) -> None:
        """Close the connection if it has been idle for too long. One timer serves all answers."""
        self._idle = None
        if self._exchange is not None:
            return
        left_s = self._idle_since + self._limits.idle_s - self._loop.time()
        if left_s <= 0:
            self._transport.close()
        else:
            self._idle = self._loop.call_later(left_s, self._close_if_idle)

    def shutdown(self) -> None:
        """Close the connection once pending requests are answered: the server stops."""
        last = self._ahead[-1] if self._ahead else self._exchange
        if last is None:
            self._transport.close()
        else:
            last.is_kept = False

    def abort(self) -> None:
        self._transport.abort()

    def reset(self) -> None:
        """Close the connection by a reset, which no client takes for the end of an answer."""
        sock = self._transport.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
        self._transport.abort()

    def close(self) -> None:
        """Close the connection once all written data is sent."""
        self._transport.close()

    def pause_reading(self) -> None:
        if not self._is_held:
            self._is_held = True
            self._transport.pause_reading()

    def resume_reading(self) -> None:
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
