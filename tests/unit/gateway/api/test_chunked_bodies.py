"""Check that a body in many small chunks is handed on as it is read, not chunk by chunk."""

import asyncio

import pytest

from kairos.gateway import HttpServer
from kairos.gateway.server.connection import Connection
from tests.conformance.gateway.server import Calls
from tests.conformance.readers import Wire

HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n"
BODY = bytes(range(256)) * 16


class Bodies(Calls):
    def start_call(self, exchange):
        self.exchange, self.parts, self.is_whole = exchange, [], False
        exchange.read_body_by(self)

    def body_came(self):
        part, self.is_whole = self.exchange.take_body()
        self.parts.append(part)


@pytest.mark.parametrize("chunk_bytes", [1, 2, 7, 100, 4_096])
@pytest.mark.parametrize("read_bytes", [1_000, 10_000, 100_000])
async def test_chunks_that_are_read_together_are_handed_on_together(chunk_bytes, read_bytes):
    pieces = [BODY[at : at + chunk_bytes] for at in range(0, len(BODY), chunk_bytes)]
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(each), each) for each in pieces) + b"0\r\n\r\n"
    calls = Bodies()
    connection = Connection(HttpServer(None, calls))
    connection.connection_made(Wire())
    connection.data_received(HEAD)
    for at in range(0, len(chunks), read_bytes):
        connection.data_received(chunks[at : at + read_bytes])
        await asyncio.sleep(0)

    assert b"".join(calls.parts) == BODY
    assert calls.is_whole
    reads = -(-len(chunks) // read_bytes)
    assert len(calls.parts) <= reads + 1
    connection.connection_lost(None)
