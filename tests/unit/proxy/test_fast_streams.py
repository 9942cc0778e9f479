"""Check that a fast answer leaves turns of the event loop to others, and arrives as it was sent."""

import asyncio
import time

import pytest

from kairos.proxy.connections import Connections
from kairos.proxy.engine_answer import EngineAnswer, Limit
from kairos.proxy.engine_link import TURN_BYTES, EngineLink
from tests.conformance.readers import Wire

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
ROUNDS = 32


class Reading:
    """An answer that comes over one wire, to a taker that works for a while on each piece."""

    def __init__(self, *, busy_s=0.0, pauses=False):
        self.pieces, self.end, self.busy_s, self.pauses = [], "", busy_s, pauses
        self.pool, self.wire = Connections(), Wire()
        self.link = EngineLink(self.pool, (None, "a", 1))
        self.link.connection_made(self.wire)
        self.answer = EngineAnswer(self, b"", b"", Limit(60))
        self.link.send(self.answer)

    def begun(self, answer):
        pass

    def came(self, data):
        self.pieces.append(data)
        time.sleep(self.busy_s)
        if self.pauses:
            self.answer.pause()

    def ended(self):
        self.end = "whole"

    def broke(self, error):
        self.end = type(error).__name__

    @property
    def body(self):
        return b"".join(self.pieces)

    async def until_ended(self):
        async with asyncio.timeout(60):
            while not self.end:
                await asyncio.sleep(0)
                if self.pauses:
                    self.answer.resume()


def lasting(body):
    return HEAD + b"content-length: %d\r\n\r\n" % len(body) + body


def chunked(body, size):
    parts = [body[at : at + size] for at in range(0, len(body), size)]
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(each), each) for each in parts)
    return HEAD + b"transfer-encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n"


def until_closed(body):
    return HEAD + b"\r\n" + body


BODY = b"".join(b"data: %d\n\n" % number for number in range(6_000))
SENT = {
    "with a length": lasting(BODY),
    "in chunks": chunked(BODY, 1_000),
    "in chunks of a byte": chunked(BODY[:20_000], 1),
    "in one chunk": chunked(BODY, len(BODY)),
}


@pytest.mark.parametrize("sent", SENT.values(), ids=SENT)
@pytest.mark.parametrize("pauses", [False, True])
async def test_an_answer_that_comes_at_once_is_read_in_pieces_and_whole(sent, pauses):
    reading = Reading(pauses=pauses)
    reading.link.data_received(sent)
    await reading.until_ended()

    assert reading.body == BODY[: len(reading.body)]
    assert len(reading.body) >= 20_000
    assert max(map(len, reading.pieces)) <= TURN_BYTES
    assert reading.end == "whole"


async def test_others_have_turns_between_the_pieces_of_a_fast_answer():
    reading, turns = Reading(busy_s=0.002), 0
    reading.link.data_received(lasting(BODY))
    while not reading.end:
        await asyncio.sleep(0)
        turns += 1

    assert turns >= len(BODY) // TURN_BYTES - 1


async def test_fast_answers_of_one_caller_take_turns_as_one():
    many, one = [Reading(busy_s=0.001) for _ in range(8)], Reading(busy_s=0.001)
    pool = many[0].pool
    for each in (*many, one):
        each.link._pool = pool  # of one process
        each.answer.caller = "one" if each is one else "many"
        each.link.data_received(lasting(BODY))
    await one.until_ended()

    read = sum(len(each.body) for each in many)
    assert read < 3 * len(BODY), "one caller's eight answers were as eight callers'"


@pytest.mark.parametrize("sent", [lasting, until_closed, lambda body: chunked(body, 500)])
async def test_a_megabyte_comes_whole_from_an_engine_that_then_closes(sent):
    body = BODY * 20

    async def serve(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(sent(body).replace(HEAD, HEAD + b"connection: close\r\n"))
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    origin = None, "127.0.0.1", server.sockets[0].getsockname()[1]
    reading = Reading()
    answer = EngineAnswer(reading, b"GET / HTTP/1.1\r\n\r\n", b"", Limit(60))
    reading.pool.send(answer, origin)
    await reading.until_ended()
    server.close()

    assert (len(reading.body), reading.end) == (len(body), "whole")


@pytest.mark.parametrize("ends_by", ["eof_received", "connection_lost"])
async def test_what_has_come_before_the_end_is_read(ends_by):
    reading = Reading(busy_s=0.001)
    reading.link.data_received(until_closed(BODY))
    if ends_by == "connection_lost":
        reading.link.eof_received()
        reading.link.connection_lost(None)
    else:
        reading.link.eof_received()

    assert reading.body == BODY
    assert reading.end == "whole"


async def test_what_comes_behind_a_whole_answer_is_no_later_answer():
    reading = Reading(busy_s=0.001)
    reading.link.data_received(lasting(BODY) + lasting(b"for another") + b" " * TURN_BYTES)
    await reading.until_ended()

    assert (reading.body, reading.end) == (BODY, "whole")
    assert reading.wire.closed, "a connection with something unread must not be kept"


async def test_a_call_that_ends_leaves_nothing_to_read():
    reading = Reading(busy_s=0.002)
    reading.link.data_received(lasting(BODY))
    seen = len(reading.pieces)
    reading.answer.close()
    for _ in range(ROUNDS):
        await asyncio.sleep(0)

    assert len(reading.pieces) == seen < len(BODY) // TURN_BYTES
