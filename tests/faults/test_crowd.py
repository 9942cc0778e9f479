"""One caller with thousands of connections, beside others."""

import asyncio
import contextlib
import time

from kairos.gateway import HttpServer, listening_socket, serving_ports
from tests.faults.crowd import CROWDS, HOST, watched
from tests.unit.gateway.server.test_http import HEAD, POST, Calls, answering

CROWD = 300
CALL = POST + b"content-length: 1\r\n\r\nx"


class Busy(Calls):
    """Each takes a while."""

    def start_call(self, exchange):
        time.sleep(0.001)
        super().start_call(exchange)


@contextlib.asynccontextmanager
async def listening(app, calls):
    """Give the host and the port of a server."""
    with listening_socket("127.0.0.1", 0) as sock:
        async with serving_ports({sock: HttpServer(app, calls)}, []):
            yield sock.getsockname()


async def test_others_do_not_wait_for_all_of_a_crowd_that_asks_at_once():
    calls = Busy()
    async with listening(answering(), calls) as (host, port):
        crowd = [
            await asyncio.open_connection(host, port, local_addr=(CROWDS, 0)) for _ in range(CROWD)
        ]
        reader, writer = await asyncio.open_connection(host, port, local_addr=(HOST, 0))
        for _, each in crowd:
            each.write(CALL)
        while not calls.taken:
            await asyncio.sleep(0)
        writer.write(CALL)
        answer = HEAD % (1, b"x")
        assert await reader.readexactly(len(answer)) == answer
        assert len(calls.taken) < CROWD / 4
        for each, _ in crowd:  # and it is served as well
            assert await each.readexactly(len(answer)) == answer
        for each in (*(each for _, each in crowd), writer):
            each.close()


async def test_what_others_notice_is_told_by_phase():
    took = await watched(connections=100, phase_s=0.5)
    assert list(took) == ["nobody", "they come", "they wait", "they leave"]
    for each in took.values():
        assert each.failed == 0
        assert each.health_ms
        assert each.calls_ms
