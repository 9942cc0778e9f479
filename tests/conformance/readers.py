"""Readers of the same bytes: Kairos's server and client, h11 and llhttp, each with its reading."""

import asyncio
import re
from types import MappingProxyType

import h11
import httptools

from kairos.gateway.server.connection import Connection, ServerState
from kairos.gateway.server.connection_limits import ConnectionLimits
from kairos.host import LoopPace
from kairos.proxy.connections import Connections
from kairos.proxy.engine_answer import EngineAnswer, Limit
from kairos.proxy.engine_link import EngineLink

REFUSED = "refused"


class Wire(asyncio.Transport):
    """A transport in memory."""

    def __init__(self):
        super().__init__({"peername": ("127.0.0.1", 1), "sockname": ("127.0.0.1", 2)})
        self.written, self.closed = bytearray(), False
        self.unsent_bytes = 0

    def write(self, data):
        self.written += data

    def writelines(self, parts):
        self.written += b"".join(parts)

    def is_closing(self):
        return self.closed

    def get_write_buffer_size(self):
        return self.unsent_bytes

    def close(self):
        self.closed = True

    abort = close

    def pause_reading(self):
        """Bytes that came are given nevertheless."""

    resume_reading = pause_reading


class Calls:
    """Takes each request as a call, and answers when its body is whole, or before."""

    targets = MappingProxyType({})

    def __init__(self, *, early=False):
        self.pace, self.read, self.last, self._early = LoopPace(), [], None, early

    def takes(self, exchange):
        return True

    def caller_of(self, exchange):
        return exchange.caller

    def take(self, exchange):
        self.last = exchange
        if self._early:
            self.answer(exchange, None)
        else:
            exchange.read_body_by(_Body(exchange, self))

    def answer(self, exchange, body):
        target = exchange.raw_path + (b"?" + exchange.query if exchange.query else b"")
        self.read.append((exchange.method.encode(), target, body))
        exchange.start(200, [(b"content-length", b"0")])
        exchange.write(b"", more=False)


class _Body:
    def __init__(self, exchange, calls):
        self.exchange, self.calls, self.parts = exchange, calls, []

    def body_came(self):
        data, is_whole = self.exchange.take_body()
        self.parts.append(data)
        if is_whole:
            self.exchange.read_body_by(None)
            self.calls.answer(self.exchange, b"".join(self.parts))


async def kairos_server(case):
    calls, wire = Calls(early=case.early), Wire()
    limits = ConnectionLimits()
    connection = Connection(None, calls, calls.pace, limits, ServerState())
    connection.connection_made(wire)
    for piece in case.pieces:
        if wire.closed:
            break
        connection.data_received(piece)
        await asyncio.sleep(0)
    for _ in range(3):
        await asyncio.sleep(0)
    is_refused = re.search(rb"HTTP/1.1 [45]\d\d ", wire.written) is not None
    # What has been answered is refused without a word.
    is_refused |= case.early and wire.closed and calls.last is not None and calls.last.is_kept
    if case.ends and not wire.closed:
        connection.eof_received()
        await asyncio.sleep(0)
        assert wire.closed
    connection.connection_lost(None)
    return tuple(calls.read), REFUSED if is_refused else ""


def h11_server(case):
    read, connection = [], h11.Connection(h11.SERVER, max_incomplete_event_size=1 << 16)
    try:
        for piece in case.pieces:
            connection.receive_data(piece)
            while _h11_step(connection, read):
                pass
        if case.ends:
            connection.receive_data(b"")
            while _h11_step(connection, read):
                pass
    except h11.RemoteProtocolError:
        return _found(case, read), REFUSED
    return _found(case, read), ""


def _h11_step(connection, read):
    event = connection.next_event()
    if isinstance(event, h11.Request):
        read.append([event.method, event.target, b"", False])
    elif isinstance(event, h11.Data):
        read[-1][2] += bytes(event.data)
    elif isinstance(event, h11.EndOfMessage):
        read[-1][3] = True
        connection.send(h11.Response(status_code=404, headers=[("content-length", "0")]))
        connection.send(h11.EndOfMessage())
        if connection.our_state is not h11.DONE or connection.their_state is not h11.DONE:
            return False
        connection.start_next_cycle()
    return event not in (h11.NEED_DATA, h11.PAUSED) and not isinstance(event, h11.ConnectionClosed)


def _found(case, read):
    if case.early:
        return tuple((method, target, None) for method, target, *_ in read if method)
    return tuple((method, target, body) for method, target, body, is_whole in read if is_whole)


class _Requests:
    def __init__(self):
        self.read, self._new = [], None
        self.parser = httptools.HttpRequestParser(self)

    def on_message_begin(self):
        self._new = [b"", b"", b"", False]
        self.read.append(self._new)

    def on_url(self, url):
        self._new[1] += url

    def on_body(self, data):
        self._new[2] += data

    def on_headers_complete(self):
        self._new[0] = self.parser.get_method()

    def on_message_complete(self):
        self._new[3] = True


def llhttp_server(case):
    found = _Requests()
    try:
        for piece in case.pieces:
            found.parser.feed_data(piece)
    except (httptools.HttpParserError, httptools.HttpParserUpgrade):
        return _found(case, found.read), REFUSED
    return _found(case, found.read), ""


class _Taken:
    def __init__(self):
        self.status, self.body, self.end = 0, bytearray(), "waits"

    def begun(self, answer):
        self.status = answer.status

    def came(self, data):
        self.body += data

    def ended(self):
        self.end = "whole"

    def broke(self, error):
        self.end = REFUSED


async def kairos_client(case):
    pool, taken, wire = Connections(), _Taken(), Wire()
    wire.unsent_bytes = 100_000 if case.early else 0
    origin = None, "a", 1
    link = EngineLink(pool, origin)
    link.connection_made(wire)
    asked = b"x" * wire.unsent_bytes
    link.send(EngineAnswer(taken, b"", asked, Limit(60), case.method.decode()))
    for piece in case.pieces:
        if wire.closed:
            break
        link.data_received(piece)
    if case.ends and not wire.closed:
        link.eof_received()
        if taken.end == "waits":
            link.connection_lost(None)
    assert not (case.early and taken.end == "whole") or wire.closed
    if taken.end == "waits":
        link.abort()
    pool.close()
    return reading(taken.status, taken.body, taken.end)


def reading(status, body, end):
    return ((status, bytes(body)) if end == "whole" else None), end


def h11_client(case):
    connection = h11.Connection(h11.CLIENT, max_incomplete_event_size=1 << 16)
    connection.send(h11.Request(method=case.method, target="/", headers=[("host", "a")]))
    connection.send(h11.EndOfMessage())
    status, body = 0, bytearray()
    try:
        for piece in (*case.pieces, *([b""] if case.ends else [])):
            connection.receive_data(piece)
            while True:
                event = connection.next_event()
                if isinstance(event, h11.Response):
                    status = event.status_code
                elif isinstance(event, h11.Data):
                    body += event.data
                elif isinstance(event, h11.EndOfMessage):
                    return reading(status, body, "whole")
                elif not isinstance(event, h11.InformationalResponse):
                    break
            if event is h11.PAUSED:  # 101: another protocol follows
                return reading(status, body, REFUSED)
    except h11.RemoteProtocolError:
        return reading(status, body, REFUSED)
    return reading(status, body, "waits")


class Response:
    """A response as llhttp reads it."""

    def __init__(self):
        self.status, self.body = 0, b""
        self.has_head = self.is_framed = self.is_whole = False
        self._parser = httptools.HttpResponseParser(self)

    def feed(self, data):
        self._parser.feed_data(data)

    def on_header(self, name, value):
        self.is_framed |= name.lower() in (b"content-length", b"transfer-encoding")

    def on_headers_complete(self):
        if not self.is_whole and self._parser.get_status_code() >= 200:
            self.status, self.has_head = self._parser.get_status_code(), True

    def on_body(self, data):
        if not self.is_whole:
            self.body += data

    def on_message_complete(self):
        self.is_whole = self.has_head


def llhttp_client(case):
    found = Response()
    try:
        for piece in case.pieces:
            found.feed(piece)
    except (httptools.HttpParserError, httptools.HttpParserUpgrade):
        return reading(found.status, found.body, "whole" if found.is_whole else REFUSED)
    if case.ends and not found.is_whole:  # llhttp's caller says so
        found.is_whole = found.has_head and not found.is_framed
        return reading(found.status, found.body, "whole" if found.is_whole else REFUSED)
    return reading(found.status, found.body, "whole" if found.is_whole else "waits")
