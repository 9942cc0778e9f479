"""The server's side of HTTP: what an application answers, as the client's socket sees it."""

import asyncio
import contextlib
import functools
import gc
import weakref
from types import MappingProxyType
from unittest import mock

import pytest

from kairos.gateway import HttpServer, listening_socket, serving_ports
from kairos.gateway.server import connection, http
from kairos.host import LoopPace
from kairos.request import CLIENT_KEY
from tests.support.loop_clock import turns

GET = b"GET /%b HTTP/1.1\r\nhost: a\r\n\r\n"


LIMIT_S = 60  # for what hangs


async def until(condition):
    async with asyncio.timeout(LIMIT_S):
        while not condition():
            await asyncio.sleep(0.001)


async def until_all_left(server):
    """Wait until the server has no connection left."""
    await until(lambda: not server.connections)


@contextlib.asynccontextmanager
async def talking_to(app, calls=None):
    async with talking_with(HttpServer(app, calls)) as ends:
        yield ends


@contextlib.asynccontextmanager
async def talking_with(server):
    with listening_socket("127.0.0.1", 0) as sock:
        async with serving_ports({sock: server}, []):
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


LAST = b"GET /last HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n"
LAST_ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\nconnection: close\r\n\r\nlast"


async def told(app, request=GET % b""):
    """All that is answered, and whether that closed the connection: one more request would be
    answered on one that is open."""
    last = answering((b"content-length", b"4"), parts=(b"last",))

    async def both(scope, receive, send):
        await (last if scope["path"] == "/last" else app)(scope, receive, send)

    async with talking_to(both) as (reader, writer), asyncio.timeout(LIMIT_S):
        writer.write(request + LAST)
        found = await reader.read()
    return found.removesuffix(LAST_ANSWER), not found.endswith(LAST_ANSWER)


async def test_an_answer_in_parts_is_chunked():
    found, _ = await told(answering(parts=(b"first", b"", b"second", b"")))
    head, _, body = found.partition(b"\r\n\r\n")
    assert head == b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked"
    assert body == b"5\r\nfirst\r\n6\r\nsecond\r\n0\r\n\r\n"


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


async def test_what_began_and_got_no_body_is_sent_as_far_as_it_came_and_cut_off():
    async def app(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})

    found, closed = await told(app)
    assert found.startswith(b"HTTP/1.1 200 OK\r\n")
    assert closed


class Told:
    """What whoever answers is told of its client."""

    def __init__(self, name, told):
        self.name, self.told = name, told

    def client_left(self):
        self.told.put_nowait((self.name, "left"))

    def client_drained(self):
        self.told.put_nowait((self.name, "drained"))


async def test_a_client_that_does_not_read_makes_the_answer_wait():
    told, waits = asyncio.Queue(), asyncio.Event()

    async def app(scope, receive, send):
        client = scope[CLIENT_KEY]
        client.answering = Told(scope["path"], told)
        client.start(200, [])
        while client.write(b"x" * (1 << 16), more=True):
            pass
        waits.set()
        assert await told.get() == ("/", "drained")
        client.write(b"", more=False)

    async with talking_to(app) as (reader, writer):
        writer.write(GET % b"")
        await waits.wait()
        while data := await reader.read(1 << 16):
            if data.endswith(b"\r\n0\r\n\r\n"):
                break


class Calls:
    """Takes requests for calls, and answers each with the body that it brought."""

    targets = MappingProxyType({b"/call": "/call"})

    def __init__(self):
        self.pace, self.taken = LoopPace(), []

    def takes(self, exchange):
        return exchange.path == "/call"

    def caller_of(self, exchange):
        return exchange.caller

    def start_call(self, exchange):
        self.taken.append(exchange)
        exchange.read_body_by(Body(exchange))


class NoTime(LoopPace):
    """Takes no step at once."""

    def may_begin(self):
        self._ends_s = 0.0
        super().may_begin()
        return False


class Body:
    def __init__(self, exchange):
        self.exchange, self.parts = exchange, []

    def body_came(self):
        data, is_whole = self.exchange.take_body()
        self.parts.append(data)
        if is_whole:
            self.exchange.read_body_by(None)
            body = b"".join(self.parts)
            self.exchange.start(200, [(b"content-length", b"%d" % len(body))])
            self.exchange.write(body, more=False)


HEAD = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b"
POST = b"POST /call HTTP/1.1\r\nhost: a\r\n"


@pytest.mark.parametrize(
    "sent",
    [
        POST + b"content-length: 4\r\n\r\nbody",
        POST + b"transfer-encoding: chunked\r\n\r\n2\r\nbo\r\n2\r\ndy\r\n0\r\n\r\n",
        b"POST /call?a=b HTTP/1.1\r\nhost: a\r\ncontent-length: 4\r\n\r\nbody",
        b"POST /c%61ll HTTP/1.1\r\nhost: a\r\ncontent-length: 4\r\n\r\nbody",
    ],
    ids=["of a length", "chunked", "a query", "encoded"],
)
async def test_a_call_is_taken_wherever_what_was_sent_is_cut(sent):
    calls, answer = Calls(), HEAD % (4, b"body")
    async with talking_to(answering(), calls) as (reader, writer):
        for at in range(1, len(sent) + 1):
            writer.write(sent[:at])
            await turns()  # it is read
            writer.write(sent[at:])
            assert await reader.readexactly(len(answer)) == answer
    assert {(each.method, each.path) for each in calls.taken} == {("POST", "/call")}


async def test_calls_and_other_requests_sent_ahead_are_answered_in_order():
    call = POST + b"content-length: 1\r\n\r\n%b"
    sent = call % b"1" + GET % b"other" + call % b"2" + call % b"3"
    async with talking_to(answering((b"content-length", b"5")), Calls()) as (reader, writer):
        writer.write(sent)
        expected = HEAD % (1, b"1") + HEAD % (5, b"whole") + HEAD % (1, b"2") + HEAD % (1, b"3")
        assert await reader.readexactly(len(expected)) == expected


async def test_what_comes_where_there_is_no_time_is_read_later_and_in_order():
    calls, body = Calls(), bytes(range(256)) * 4096
    calls.pace = NoTime()
    call = POST + b"content-length: %d\r\n\r\n%b"
    async with talking_to(answering((b"content-length", b"5")), calls) as (reader, writer):
        writer.write(call % (len(body), body) + GET % b"other" + call % (1, b"2"))
        expected = HEAD % (len(body), body) + HEAD % (5, b"whole") + HEAD % (1, b"2")
        assert await reader.readexactly(len(expected)) == expected


async def test_who_sends_far_ahead_waits_and_what_it_sent_is_answered_to_the_end():
    """Until the first is answered, the connection holds no more than a read of what follows."""

    class Later(Calls):
        def start_call(self, exchange):
            self.taken.append(exchange)

    calls, number = Later(), 20_000
    call = POST + b"content-length: 100\r\n\r\n" + b"x" * 100
    async with talking_to(answering(), calls) as (reader, writer):
        writer.write(call * number)
        await until(lambda: calls.taken)
        [exchange] = calls.taken
        ahead, transport = exchange._wire._ahead, exchange._wire._transport
        await until(lambda: len(ahead) > number / 2 or not transport.is_reading())
        assert len(ahead) < number / 2
        calls.start_call = functools.partial(Calls.start_call, calls)
        exchange.read_body_by(Body(exchange))
        expected = HEAD % (100, b"x" * 100) * number
        assert await reader.readexactly(len(expected)) == expected


async def test_whoever_waits_to_be_told_is_told_to_send_its_body():
    async with talking_to(answering(), Calls()) as (reader, writer):
        writer.write(POST + b"content-length: 4\r\nexpect: 100-continue\r\n\r\n")
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(b"body")
        assert await reader.readuntil(b"body") == HEAD % (4, b"body")


async def test_a_body_that_nobody_takes_waits_at_the_client():
    class Waiting(Calls):
        def start_call(self, exchange):
            self.taken.append(exchange)

    calls, size = Waiting(), 32 << 20
    async with talking_to(answering(), calls) as (reader, writer):
        writer.write(POST + b"content-length: %d\r\n\r\n" % size)
        writer.write(b"x" * size)
        await until(lambda: calls.taken)
        [exchange] = calls.taken
        parts, transport = exchange._parts, exchange._wire._transport
        await until(lambda: sum(map(len, parts)) > 2 << 20 or not transport.is_reading())
        assert sum(map(len, parts)) < 2 << 20
        exchange.read_body_by(Body(exchange))
        exchange._reader.body_came()
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
        assert len(await reader.readexactly(size)) == size


async def test_a_head_without_end_is_refused():
    async def send(lines):
        request = b"GET / HTTP/1.1\r\n" + lines + b"\r\n"
        found, closed = await told(answering(), request)
        assert closed
        return found

    assert (await send(b"abcd: efgh\r\n" * 9_000)).startswith(b"HTTP/1.1 431 ")
    assert (await send(b"a: %b\r\n" % (b"b" * 70_000))).startswith(b"HTTP/1.1 431 ")
    assert (await send(b"a\r\n")).startswith(b"HTTP/1.1 400 ")


CHUNKED = b"POST /call HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n"
WITHOUT_END = {
    "a target": b"GET /",
    "a header's name": b"GET / HTTP/1.1\r\n",
    "a header": b"GET / HTTP/1.1\r\na: ",
    "an extension of a chunk": CHUNKED + b"5;",
    "an extension's value": CHUNKED + b'1\r\nx\r\n5;a="',
    "a trailer": CHUNKED + b"1\r\nx\r\n0\r\na: ",
}


@pytest.mark.parametrize("what", WITHOUT_END)
async def test_what_never_ends_is_refused_and_not_kept(what):
    async with talking_to(answering(), Calls()) as (reader, writer):
        writer.write(WITHOUT_END[what])
        answer, sent = asyncio.create_task(reader.readuntil(b"\r\n")), 0
        while not answer.done() and sent < 1 << 20:
            writer.write(b"x" * 1024)
            sent += 1024
            await asyncio.sleep(0.002)
        assert (await answer).startswith(b"HTTP/1.1 431 ")
        assert sent < 100 << 10


async def test_trailers_are_bounded_and_are_no_headers():
    calls = Calls()
    async with talking_to(answering(), calls) as (reader, writer):
        writer.write(CHUNKED + b"1\r\nx\r\n0\r\nauthorization: Bearer a\r\nhost: b\r\n\r\n")
        assert await reader.readuntil(b"\r\n\r\nx") == HEAD % (1, b"x")
        assert calls.taken[0].headers == [(b"host", b"a"), (b"transfer-encoding", b"chunked")]
        writer.write(CHUNKED + b"1\r\nx\r\n0\r\n" + b"abcd: efgh\r\n" * 9_000 + b"\r\n")
        assert b"HTTP/1.1 431 " in await reader.read()


@pytest.mark.parametrize(
    "begin",
    [
        b"GET / HTTP/1.1\r\nendless: ",
        b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n0\r\nendless: ",
        b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n1;",
    ],
    ids=["head", "trailer", "extension"],
)
async def test_what_never_ends_is_not_held(begin):
    async with talking_to(answering()) as (reader, writer), asyncio.timeout(LIMIT_S):
        with contextlib.suppress(ConnectionError):
            writer.write(begin + b"x" * (4 << 20))
            await writer.drain()
            await reader.read()


async def test_what_is_no_http_amid_an_answer_ends_the_connection_without_a_second_one():
    told = asyncio.Queue()

    class Waiting(Calls):
        def start_call(self, exchange):
            exchange.answering = Told("call", told)
            exchange.start(200, [])
            exchange.write(b"part", more=True)

    async with talking_to(answering(), Waiting()) as (reader, writer):
        writer.write(POST + b"content-length: 0\r\n\r\n")
        await reader.readuntil(b"part")
        writer.write(b"nonsense\r\n\r\n")
        assert await reader.read() == b"\r\n"
        assert await told.get() == ("call", "left")


async def test_what_is_asked_on_a_connection_keeps_it_open(monkeypatch):
    made = []
    make = connection.Connection.connection_made
    monkeypatch.setattr(
        connection.Connection,
        "connection_made",
        lambda self, to: (made.append(self), make(self, to)),
    )
    async with talking_to(answering((b"content-length", b"5"))) as (reader, writer):
        for _ in range(2):
            writer.write(GET % b"")
            await reader.readuntil(b"whole")
            [each] = made
            each._close_if_idle()  # too early: the answer has just gone
            assert not each._transport.is_closing()
            each._idle_since -= each._limits.idle_s
        each._close_if_idle()
        assert each._transport.is_closing()


@contextlib.asynccontextmanager
async def connected(sock):
    reader, writer = await asyncio.open_connection(*sock.getsockname())
    try:
        yield reader, writer
    finally:
        writer.close()
        await writer.wait_closed()


async def test_who_is_served_when_the_server_ends_is_served_to_the_end():
    asked = asyncio.Event()

    async def app(scope, receive, send):
        asked.set()
        await until(lambda: not scope[CLIENT_KEY].is_kept)  # the server ends
        await answering((b"content-length", b"5"))(scope, receive, send)

    with listening_socket("127.0.0.1", 0) as sock:
        async with serving_ports({sock: HttpServer(app)}, []):
            reader, writer = await asyncio.open_connection(*sock.getsockname())
            writer.write(GET % b"")
            await asked.wait()
    assert (await reader.read()).endswith(b"connection: close\r\n\r\nwhole")
    writer.close()


async def test_a_call_that_runs_when_the_servers_time_is_up_ends_as_if_its_client_had_left(
    monkeypatch,
):
    class Waiting(Calls):
        def start_call(self, exchange):
            exchange.answering = Told("call", told)
            self.taken.append(exchange)

    monkeypatch.setattr(http, "GRACE_S", 0.2)
    told, calls = asyncio.Queue(), Waiting()
    with listening_socket("127.0.0.1", 0) as sock:
        async with serving_ports({sock: HttpServer(answering(), calls)}, []):
            _, writer = await asyncio.open_connection(*sock.getsockname())
            writer.write(POST + b"content-length: 0\r\n\r\n")
            await until(lambda: calls.taken)
    assert await told.get() == ("call", "left")
    writer.close()


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


async def test_a_connection_leaves_nothing_to_the_garbage_collector():
    calls = Calls()
    server = HttpServer(answering(), calls)
    with listening_socket("127.0.0.1", 0) as sock:
        async with serving_ports({sock: server}, []):

            async def ask(times):
                for _ in range(times):
                    reader, writer = await asyncio.open_connection(*sock.getsockname())
                    writer.write(POST + b"content-length: 1\r\n\r\nx")
                    await reader.readexactly(len(HEAD % (1, b"x")))
                    writer.close()
                    await until_all_left(server)
                calls.taken.clear()

            await ask(3)
            gc.collect()
            gc.disable()
            try:
                known = weakref.WeakSet()
                made = connection.Connection.connection_made
                with mock.patch.object(
                    connection.Connection,
                    "connection_made",
                    lambda self, transport: (known.add(self), made(self, transport)),
                ):
                    await ask(20)
                assert len(known) <= 1
            finally:
                gc.enable()
