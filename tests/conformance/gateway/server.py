"""Kairos's server as a reader of bytes."""

import asyncio
import re
from types import MappingProxyType

from kairos.gateway import HttpServer
from kairos.gateway.server.connection import Connection
from kairos.gateway.server.connection_limits import ConnectionLimits
from kairos.host import LoopPace
from tests.conformance.readers import REFUSED, Wire


class Calls:
    """Takes each request as a call, and answers when its body is whole, or before."""

    targets = MappingProxyType({})

    def __init__(self, *, early=False):
        self.pace, self.read, self.last, self._early = LoopPace(), [], None, early

    def takes(self, exchange):
        return True

    def caller_of(self, exchange):
        return exchange.caller

    def start_call(self, exchange):
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
    connection = Connection(HttpServer(None, calls, limits))
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
