"""Readers of the same bytes: Kairos's server and client, h11 and llhttp, each with its reading."""

import asyncio
import re
from types import MappingProxyType

import h11
import httptools

from kairos.live.frontend.connection import Connection, ServerState
from kairos.live.frontend.connection_limits import ConnectionLimits
from kairos.live.process.pace import LoopPace
from kairos.live.proxy.connections import Connections
from kairos.live.proxy.engine_answer import EngineAnswer, Limit
from kairos.live.proxy.engine_link import EngineLink

REFUSED = "refused"


class Wire(asyncio.Transport):
    """A transport in memory."""

    def __init__(self):
        super().__init__({"peername": ("127.0.0.1", 1), "sockname": ("127.0.0.1", 2)})
        self.written, self.closed = bytearray(), False

    def write(self, data):
        self.written += data

    def writelines(self, parts):
        self.written += b"".join(parts)

    def is_closing(self):
        return self.closed

    def close(self):
        self.closed = True

    abort = close

    def pause_reading(self):
        """Bytes that came are given nevertheless."""

    resume_reading = pause_reading


class Calls:
    """Takes each request as a call, and answers when its body is whole."""

    targets = MappingProxyType({})

    def __init__(self):
        self.pace, self.read = LoopPace(), []

    def takes(self, exchange):
        return True

    def caller_of(self, exchange):
        return exchange.caller

    def take(self, exchange):
        exchange.read_body_by(_Body(exchange, self.read))


class _Body:
    def __init__(self, exchange, read):
        self.exchange, self.read, self.parts = exchange, read, []

    def body_came(self):
        data, is_whole = self.exchange.take_body()
        self.parts.append(data)
        if is_whole:
            exchange = self.exchange
            exchange.read_body_by(None)
            target = exchange.raw_path + (b"?" + exchange.query if exchange.query else b"")
            self.read.append((exchange.method.encode(), target, b"".join(self.parts)))
            exchange.start(200, [(b"content-length", b"0")])
            exchange.write(b"", more=False)


async def kairos_server(case):
    calls, wire = Calls(), Wire()
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
    connection.connection_lost(None)
    return tuple(calls.read), REFUSED if is_refused else ""


def h11_server(case):
    read, connection = [], h11.Connection(h11.SERVER, max_incomplete_event_size=1 << 16)
    try:
        for piece in case.pieces:
            connection.receive_data(piece)
            while _h11_step(connection, read):
                pass
    except h11.RemoteProtocolError:
        return _whole(read), REFUSED
    return _whole(read), ""


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


def _whole(read):
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

    def on_message_complete(self):
        self._new[0] = self.parser.get_method()
        self._new[3] = True


def llhttp_server(case):
    found = _Requests()
    try:
        for piece in case.pieces:
            found.parser.feed_data(piece)
    except (httptools.HttpParserError, httptools.HttpParserUpgrade):
        return _whole(found.read), REFUSED
    return _whole(found.read), ""


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
    origin = None, "a", 1
    link = EngineLink(pool, origin)
    link.connection_made(wire)
    link.send(EngineAnswer(taken, b"", b"", Limit(60), case.method.decode()))
    for piece in case.pieces:
        if wire.closed:
            break
        link.data_received(piece)
    if case.ends and not wire.closed:
        link.eof_received()
        if taken.end == "waits":
            link.connection_lost(None)
    if taken.end == "waits":
        link.abort()
    pool.close()
    return _reading(taken.status, taken.body, taken.end)


def _reading(status, body, end):
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
                    return _reading(status, body, "whole")
                elif not isinstance(event, h11.InformationalResponse):
                    break
            if event is h11.PAUSED:  # 101: another protocol follows
                return _reading(status, body, REFUSED)
    except h11.RemoteProtocolError:
        return _reading(status, body, REFUSED)
    return _reading(status, body, "waits")
