"""The server's side of HTTP: what an application answers, as the client's socket sees it."""

import asyncio
import contextlib
import gc

import pytest

from kairos.live.frontend.http import listen, server_of, serving
from kairos.live.request.client_response import CLIENT

GET = b"GET /%b HTTP/1.1\r\nhost: a\r\n\r\n"


@contextlib.asynccontextmanager
async def talking_to(app):
    with listen("127.0.0.1", 0) as sock:
        async with serving({sock: server_of(app)}, []):
            reader, writer = await asyncio.open_connection(*sock.getsockname())
            try:
                yield reader, writer
            finally:
                writer.close()


def answering(*headers, status=200, parts=(b"whole",)):
    async def app(scope, receive, send):
        start = {"type": "http.response.start", "status": status, "headers": list(headers)}
        await send(start)
        for number, part in enumerate(parts, start=1):
            more = number < len(parts)
            await send({"type": "http.response.body", "body": part, "more_body": more})

    return app


async def told(app, request=GET % b""):
    """All that is sent, until the server is silent or closes."""
    found = b""
    async with talking_to(app) as (reader, writer):
        writer.write(request)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.3):
                while data := await reader.read(1 << 16):
                    found += data
                return found, True
    return found, False


async def test_an_answer_of_known_length_is_one_head_and_its_body():
    found, closed = await told(answering((b"content-length", b"5"), (b"x-name", b"a b")))
    assert found == b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\nx-name: a b\r\n\r\nwhole"
    assert not closed


async def test_an_answer_in_parts_is_chunked():
    found, _ = await told(answering(parts=(b"first", b"", b"second", b"")))
    head, _, body = found.partition(b"\r\n\r\n")
    assert head == b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked"
    assert body == b"5\r\nfirst\r\n6\r\nsecond\r\n0\r\n\r\n"


@pytest.mark.parametrize("status", [204, 304])
async def test_what_has_no_body_has_no_chunks(status):
    found, _ = await told(answering(status=status, parts=(b"",)))
    assert b"transfer-encoding" not in found
    assert found.endswith(b"\r\n\r\n")


async def test_head_asks_for_no_body():
    found, _ = await told(
        answering((b"content-length", b"5")), b"HEAD / HTTP/1.1\r\nhost: a\r\n\r\n"
    )
    assert found.endswith(b"content-length: 5\r\n\r\n")


@pytest.mark.parametrize(
    ("headers", "request_"),
    [
        ([(b"connection", b"close")], GET % b""),
        ([], b"GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n"),
        ([], b"GET / HTTP/1.0\r\n\r\n"),
    ],
    ids=["the application", "the client", "HTTP/1.0"],
)
async def test_either_side_may_end_the_connection(headers, request_):
    found, closed = await told(answering((b"content-length", b"5"), *headers), request_)
    assert closed
    assert found.count(b"connection: close") == 1
    assert found.endswith(b"whole")


@pytest.mark.parametrize("value", [b"a\r\nb: c", b"a\nb", b"a\x00b", b"a\x1bb"])
async def test_a_header_cannot_become_two(value):
    found, _ = await told(answering((b"x", value)))
    assert found.startswith(b"HTTP/1.1 500 ")
    assert b"b: c" not in found


async def test_requests_sent_ahead_are_answered_in_order():
    async def app(scope, receive, send):
        path = scope["path"].encode()
        if path == b"/slow":
            await asyncio.sleep(0.05)
        await answering((b"content-length", b"5"), parts=(path,))(scope, receive, send)

    found, _ = await told(app, GET % b"slow" + GET % b"fast")
    assert found.index(b"/slow") < found.index(b"/fast")


async def test_what_began_and_got_no_body_is_sent_as_far_as_it_came_and_cut_off():
    async def app(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})

    found, closed = await told(app)
    assert found.startswith(b"HTTP/1.1 200 OK\r\n")
    assert closed


async def test_each_call_hears_once_that_its_client_has_gone():
    left, all_left = [], asyncio.Event()

    async def app(scope, receive, send):
        gone = asyncio.Event()
        scope[CLIENT].leaving.watch(lambda: (left.append(scope["path"]), gone.set()))
        await gone.wait()
        all_left.set()

    async with talking_to(app) as (_, writer):
        writer.write(GET % b"a")
        await asyncio.sleep(0.05)
        writer.close()
        await all_left.wait()
    assert left == ["/a"]


async def test_a_client_that_does_not_read_makes_the_answer_wait():
    waits = asyncio.Event()

    async def app(scope, receive, send):
        client = scope[CLIENT]
        client.start(200, [])
        while client.write(b"x" * (1 << 16), more=True):
            pass
        waits.set()
        await client.drained()
        client.write(b"", more=False)

    async with talking_to(app) as (reader, writer):
        writer.write(GET % b"")
        await waits.wait()
        while data := await reader.read(1 << 16):
            if data.endswith(b"\r\n0\r\n\r\n"):
                break


async def test_a_call_leaves_nothing_to_the_garbage_collector():
    """What reference cycles hold is held for long: the collector looks seldom."""
    async with talking_to(answering((b"content-length", b"5"))) as (reader, writer):

        async def ask(times):
            for _ in range(times):
                writer.write(b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 2\r\n\r\n{}")
                await reader.readuntil(b"whole")
            await asyncio.sleep(0)

        await ask(3)
        gc.collect()
        gc.disable()
        try:
            await ask(100)
            assert gc.collect() < 100
        finally:
            gc.enable()
