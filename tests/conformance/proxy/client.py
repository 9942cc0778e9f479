"""Kairos's client of engines as a reader of bytes."""

from kairos.proxy.connections import Connections
from kairos.proxy.engine_answer import EngineAnswer, Limit
from kairos.proxy.engine_link import EngineLink
from tests.conformance.readers import REFUSED, Wire, reading


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
