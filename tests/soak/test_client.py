"""The soak's client takes every way in which a call can end for what it is."""

import asyncio
import json
from contextlib import asynccontextmanager, suppress

import aiohttp
import msgspec
import pytest

from tests.soak.asks import Asks
from tests.soak.client import call
from tests.soak.engine import STANDIN

PLAIN = Asks(1, STANDIN, 1).plain()
ASK = msgspec.structs.replace(PLAIN, says="yes no", patience_s=0.5)
OVERDUE = msgspec.structs.replace(ASK, deadline_s=0.1)
LEAVES = msgspec.structs.replace(ASK, leaves=True)

EVENTS = [
    b'data: {"choices":[{"delta":{"role":"assistant","content":""}}]}\n\n',
    b'data: {"choices":[{"delta":{"content":"yes "}}]}\n\n',
    b'data: {"choices":[{"delta":{"content":"no"}}]}\n\n',
]
WAITING = b": waiting for an instance\n\n"
DONE = b"data: [DONE]\n\n"
ERROR = b'data: {"error":{"code":"upstream_failed"}}\n\n'
SAID = b'{"error":{"code":"queue_full"}}'


def whole(body, status="200 OK", kind="application/json", length=None, request_id=ASK.id):
    lines = [f"HTTP/1.1 {status}", f"Content-Type: {kind}", f"X-Request-Id: {request_id}"]
    return "\r\n".join([*lines, f"Content-Length: {length or len(body)}", "", ""]).encode() + body


def message(text):
    return whole(b'{"choices":[{"message":{"content":"%s"}}]}' % text)


def streamed(*events, length=None):
    return whole(b"".join(events), kind="text/event-stream", length=length)


@asynccontextmanager
async def answering(answer):
    """A server that says this to whoever comes; None: it closes, and ... stays silent."""

    handlers = []

    async def serve(reader, writer):
        handlers.append(asyncio.current_task())
        await reader.readuntil(b"\r\n\r\n")
        await reader.readexactly(len(ASK.body))
        if answer is ...:
            await reader.read()  # until the client leaves
        elif answer is not None:
            writer.write(answer)
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        await asyncio.gather(*handlers)


@pytest.mark.parametrize(
    ("answer", "ask", "end"),
    [
        (message(b"yes no"), ASK, "answered"),
        (message(b"yes"), ASK, "wrong answer"),
        (whole(b"{no json"), ASK, "wrong answer"),
        (message(b"yes no")[:-5], ASK, "cut off"),
        (streamed(*EVENTS, DONE), ASK, "answered"),
        (streamed(*EVENTS, DONE, ERROR, DONE), ASK, "answered"),
        (streamed(WAITING, WAITING, *EVENTS, DONE), ASK, "answered"),
        (streamed(*EVENTS[:2], ERROR, DONE), ASK, "error in stream"),
        (streamed(WAITING, ERROR, DONE), ASK, "error in stream"),
        (streamed(*EVENTS[:2], length=500), ASK, "cut off"),
        (streamed(*EVENTS), ASK, "wrong answer"),
        (streamed(*EVENTS[:2], DONE), ASK, "wrong answer"),
        (streamed(EVENTS[0], EVENTS[2], DONE), ASK, "wrong answer"),
        (streamed(b"<html>\n\n"), ASK, "wrong answer"),
        (whole(SAID, "429 No"), ASK, "error"),
        (whole(SAID, "429 No", request_id="another"), ASK, "wrong error"),
        (whole(b"oh", "500 No"), ASK, "wrong error"),
        (None, ASK, "no answer"),
        (..., ASK, "gave up"),
        (..., LEAVES, "left"),
        (..., OVERDUE, "overdue"),
    ],
)
async def test_a_call_has_this_end(answer, ask, end):
    async with answering(answer) as url, aiohttp.ClientSession() as session:
        outcome = await call(session, url, ask)
    assert outcome.end == end
    assert outcome.ask == msgspec.structs.replace(ask, body=b"", says="")


TOKENS = msgspec.structs.replace(ASK, says="", tokens=2)


def counted(tokens=2, finish="length", name=ASK.id):
    said = {
        "id": f"chatcmpl-{name}",
        "choices": [{"message": {"content": "yes no"}, "finish_reason": finish}],
        "usage": {"completion_tokens": tokens},
    }
    return whole(json.dumps(said).encode())


@pytest.mark.parametrize(
    ("answer", "end"),
    [
        (counted(), "answered"),
        (counted(tokens=1), "wrong answer"),
        (counted(finish="stop"), "wrong answer"),
        (counted(name="another"), "wrong answer"),
        (whole(b'{"id": "chatcmpl-%s"}' % ASK.id.encode()), "wrong answer"),
    ],
)
async def test_of_noise_the_length_tells_and_whose_it_is(answer, end):
    async with answering(answer) as url, aiohttp.ClientSession() as session:
        assert (await call(session, url, TOKENS)).end == end


async def test_nobody_there_is_no_answer():
    async with aiohttp.ClientSession() as session:
        assert (await call(session, "http://127.0.0.1:1", ASK)).end == "no answer"
