"""The HTTP client for engines, before servers that answer byte by byte what a test says."""

import asyncio
import contextlib
import os
import select
import socket

import pytest

from kairos.proxy import Asked, ConnectionBroke, EngineRefused, Upstream, header_lines
from kairos.proxy import connections as module
from kairos.proxy.asked import PassedHeaders, request_head
from kairos.proxy.connections import Connections
from kairos.proxy.engine_answer import EngineAnswer, Limit, NothingCame
from tests.support.loop_clock import moved_clock

WHOLE = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 4\r\n\r\n{}\r\n"
CHUNKED = (
    b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nfirst\r\n6\r\nsecond\r\n0\r\n\r\n"
)
STARTED = CHUNKED[: CHUNKED.index(b"6\r\n")]  # with its first chunk
LENGTH = b"Content-Length:"
LIMIT_S = 60.0
LIMIT = Limit(LIMIT_S)


class Engine:
    """Answers each request with the next of `answers`: pieces, written apart. None: it closes."""

    def __init__(self, *answers: list[bytes | None]) -> None:
        self.answers = list(answers)
        self.requests: list[bytes] = []
        self.connections = self.closed = 0
        self.tasks: list[asyncio.Task[None]] = []
        self.writers: list[asyncio.StreamWriter] = []
        self.reads_bodies = True

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.writers.append(writer)
        self.tasks.append(asyncio.current_task())
        try:
            while self.answers and (head := await reader.readuntil(b"\r\n\r\n")):
                told = [each for each in head.split(b"\r\n") if each.startswith(LENGTH)]
                length = int(told[0].removeprefix(LENGTH)) if told and self.reads_bodies else 0
                self.requests.append(head + await reader.readexactly(length))
                for piece in self.answers.pop(0):
                    if piece is None:
                        return
                    writer.write(piece)
                    await writer.drain()
                    await asyncio.sleep(0)
            await reader.read()
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            self.closed += 1
            writer.close()


class Taken:
    """Takes an answer, and holds what came of it until a test reads it."""

    def __init__(self, *, full=False):
        self.full = full  # no more is taken until it is read
        self.answer = None
        self.status, self.said = 0, []
        self.is_whole, self.error = False, None
        self._changed = asyncio.Event()

    def begun(self, answer):
        self.answer, self.status = answer, answer.status
        answer.progressed()
        self._changed.set()

    def came(self, data):
        self.said.append(data)
        self.answer.progressed()
        if self.full:
            self.answer.pause()
        self._changed.set()

    def ended(self):
        self.is_whole = True
        self._changed.set()

    def broke(self, error):
        self.error = error
        self._changed.set()

    async def until(self, condition):
        """Raises what it broke by."""
        while not condition():
            if self.error is not None:
                raise self.error
            self._changed.clear()
            await self._changed.wait()

    async def read(self):
        """What came; empty at the end."""
        await self.until(lambda: self.said or self.is_whole)
        data = b"".join(self.said)
        self.said.clear()
        if self.full and data:
            self.answer.resume()
        return data


@pytest.fixture
async def clock():
    with moved_clock() as clock:
        yield clock


@contextlib.asynccontextmanager
async def before(*answers):
    engine = Engine(*answers)
    server = await asyncio.start_server(engine.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    connections = Connections()
    try:
        yield engine, connections, Upstream("e", f"http://127.0.0.1:{port}")
    finally:
        connections.close()
        server.close()
        for each in engine.tasks:
            each.cancel()
        await asyncio.gather(*engine.tasks, return_exceptions=True)


async def send(
    connections,
    upstream,
    body=b"{}",
    headers=None,
    limit=LIMIT,
    method="POST",
    taken=None,
    request_id=b"r",
) -> Taken:
    taken = taken or Taken()
    asked = Asked(method, "/v1/chat", b"", headers or {})
    head = request_head(
        upstream.head(method, "/v1/chat", b""), asked, request_id, None, len(body), PassedHeaders()
    )
    taken.answer = EngineAnswer(taken, head, body, limit, method)
    connections.send(taken.answer, upstream.origin)
    await taken.until(lambda: taken.status)
    return taken


async def all_of(taken) -> bytes:
    found = b""
    while data := await taken.read():
        found += data
    return found


async def test_what_is_sent_is_plain_http_with_the_length_of_its_body():
    async with before([WHOLE]) as (engine, connections, url):
        answer = await send(
            connections, url, b"body", {b"accept": b"value", b"x-name": b"not passed on"}
        )
        assert (answer.status, answer.answer.content_type) == (200, b"application/json")
        assert await all_of(answer) == b"{}\r\n"
        head, _, body = engine.requests[0].partition(b"\r\n\r\n")
        assert head.split(b"\r\n") == [
            b"POST /v1/chat HTTP/1.1",
            b"Host: 127.0.0.1:%d" % url.origin[2],
            b"X-Request-Id: r",
            b"accept: value",
            b"Content-Length: 4",
        ]
        assert body == b"body"


async def test_what_is_not_read_to_its_end_is_not_used_again():
    async with before([STARTED], [WHOLE]) as (engine, connections, url):
        answer = await send(connections, url)
        answer.answer.close()
        await all_of(await send(connections, url))
        assert engine.connections == 2


async def test_an_answer_without_a_length_ends_with_its_connection():
    answer = b"HTTP/1.1 200 OK\r\n\r\nto the end"
    async with before([answer, None], [WHOLE]) as (engine, connections, url):
        assert await all_of(await send(connections, url)) == b"to the end"
        await all_of(await send(connections, url))
        assert engine.connections == 2


@pytest.mark.parametrize("part", [WHOLE[:-1], CHUNKED[:-7], WHOLE[:20]])
async def test_an_answer_that_breaks_off_is_an_error(part):
    async with before([part, None]) as (_, connections, url):
        with pytest.raises(ConnectionBroke):
            await all_of(await send(connections, url))


async def test_interim_answers_are_passed_over():
    interim = b"HTTP/1.1 103 Early Hints\r\nlink: a\r\n\r\n"
    async with before([interim, WHOLE]) as (_, connections, url):
        answer = await send(connections, url)
        assert answer.status == 200
        assert [name for name, _ in answer.answer.headers] == [b"content-type", b"content-length"]
        await all_of(answer)


@pytest.mark.parametrize(
    "answer",
    [
        b"nonsense\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"a: %b\r\n" % (b"b" * 1000) * 70 + b"\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nab",
    ],
    ids=["no HTTP", "another protocol", "endless headers", "two lengths"],
)
async def test_what_is_no_answer_is_an_error(answer):
    async with before([answer]) as (_, connections, url):
        with pytest.raises(ConnectionBroke):
            await all_of(await send(connections, url))


async def test_what_answers_twice_is_not_used_again():
    async with before([WHOLE + WHOLE], [WHOLE]) as (engine, connections, url):
        with contextlib.suppress(ConnectionBroke):
            assert await all_of(await send(connections, url)) == b"{}\r\n"
        await all_of(await send(connections, url))
        assert engine.connections == 2


def answer_of(request_id: bytes, *, chunked: bool = False, header: bool = False) -> bytes:
    """Build an answer that names its request, as vLLM's do."""
    body = b'{"id":"%b","x":1}' % (b"none" if header else b"chatcmpl-" + request_id)
    lines = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
    if header:
        lines += b"x-request-id: %b\r\n" % request_id
    if chunked:
        return lines + b"transfer-encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (
            len(body),
            body,
        )
    return lines + b"Content-Length: %d\r\n\r\n%b" % (len(body), body)


# What comes unasked, and when.
UNASKED = {
    "a whole answer": answer_of(b"first"),
    "in chunks": answer_of(b"first", chunked=True),
    "by a header": answer_of(b"first", header=True),
    "a part of one": answer_of(b"first")[:30],
    "an interim answer": b"HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n",
    "blank lines": b"\r\n\r\n",
    "what is no HTTP": b"first",
    "the end": None,
}


@pytest.mark.parametrize("unasked", UNASKED)
async def test_what_comes_unasked_before_the_next_call_is_never_its_answer(unasked):
    async with before([answer_of(b"first")], [answer_of(b"second")]) as (engine, connections, url):
        first = await send(connections, url, request_id=b"first")
        await all_of(first)
        (link,) = connections._idle[url.origin]
        transport = link._transport
        there = socket.socket(fileno=os.dup(transport.get_extra_info("socket").fileno()))
        there.setblocking(False)
        writer = engine.writers[0]
        if UNASKED[unasked] is None:
            writer.get_extra_info("socket").shutdown(socket.SHUT_WR)
        else:
            os.write(writer.get_extra_info("socket").fileno(), UNASKED[unasked])
        select.select([there], [], [], 60)
        second = Taken()
        await send(connections, url, request_id=b"second", taken=second)
        assert await all_of(second) == answer_of(b"second").partition(b"\r\n\r\n")[2]
        assert engine.connections == 2
        there.close()


@pytest.mark.parametrize("unasked", ["a whole answer", "in chunks", "by a header"])
async def test_an_answer_to_the_call_before_is_not_taken_for_the_next_one(unasked):
    async with before([answer_of(b"first")], [UNASKED[unasked], answer_of(b"second")]) as (
        engine,
        connections,
        url,
    ):
        await all_of(await send(connections, url, request_id=b"first"))
        with pytest.raises(ConnectionBroke, match="earlier call"):
            await all_of(await send(connections, url, request_id=b"second"))
        assert engine.connections == 1
        engine.answers.append([answer_of(b"third")])
        await all_of(await send(connections, url, request_id=b"third"))
        assert engine.connections == 2


# Ids of two calls, and what an engine says that does not name calls, or means something else.
ALIKE = {
    "a letter of the answer": (b"a", b"b", [b'{"object":"made up"}'] * 2),
    "a number of the answer": (b"1", b"7", [b'{"created":1}'] * 2),
    "the model's name": (b"tiny", b"mine", [b'{"model":"tiny"}'] * 2),
    "what the answer says": (b"hello", b"there", [b'{"content":"hello"}'] * 2),
    "the beginning of an id": (b"chat", b"mine", [b'{"id":"chatcmpl-1"}'] * 2),
    "numbers of its own, one behind": (b"2", b"3", [b'{"id":"cmpl-1"}', b'{"id":"cmpl-2"}']),
    "numbers of its own, by a line": (b"2", b"3", [b'{"id":"cmpl_1"}', b'{"id":"cmpl_2"}']),
    "an id of its own that is the same": (b"c", b"d", [b'{"id":"x"}', b'{"id":"c"}']),
    "its end, and this one's": (b"a", b"b-a", [b'{"id":"cmpl-a"}', b'{"id":"cmpl-b-a"}']),
    "an earlier one in its text": (b"a", b"b", [b'{"id":"r-a"}', b'{"id":"r-b","n":"r-a"}']),
    "an id further behind": (
        b"a",
        b"b",
        [b'{"id":"r-a"}', b'{"t":"%b","id":"r-a"}' % (b"x" * 600)],
    ),
}


@pytest.mark.parametrize("alike", ALIKE)
async def test_an_answer_that_only_holds_the_id_of_the_call_before_is_taken(alike):
    one, other, said = ALIKE[alike]
    head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n"
    async with before(*([head % len(each) + each] for each in said)) as (engine, connections, url):
        for request_id, body in zip((one, other), said, strict=True):
            assert await all_of(await send(connections, url, request_id=request_id)) == body
        assert engine.connections == 1


async def test_a_call_may_be_tried_again_under_its_id_and_engines_may_say_none():
    answers = [[answer_of(b"first")], [answer_of(b"first")], [WHOLE], [answer_of(b"fourth")]]
    async with before(*answers) as (engine, connections, url):
        for request_id in (b"first", b"first", b"third", b"fourth"):
            await all_of(await send(connections, url, request_id=request_id))
        assert engine.connections == 1


async def test_a_connection_on_which_a_request_is_not_sent_whole_serves_no_other():
    """The engine would read the rest of the body before the next call."""
    async with before([WHOLE]) as (engine, connections, url):
        engine.reads_bodies = False
        await all_of(await send(connections, url, b"x" * (32 << 20)))
        engine.reads_bodies = True
        engine.answers.append([WHOLE])
        await all_of(await send(connections, url))
        assert engine.connections == 2


async def test_the_time_of_a_call_is_its_own_on_a_connection_that_served_others(clock):
    async with before([WHOLE], [STARTED], [WHOLE]) as (engine, connections, url):
        await all_of(await send(connections, url, limit=Limit(600.0)))
        answer = await send(connections, url)
        assert engine.connections == 1
        clock.move(LIMIT_S)
        with pytest.raises(NothingCame):
            await all_of(answer)


@pytest.mark.parametrize("asked", ["at once", "later"])
async def test_an_address_that_has_changed_is_found_though_the_connection_is_always_used(
    clock, monkeypatch, asked
):
    """The old engine answers still; the name leads to the new one."""
    async with (
        before(*[[WHOLE]] * 4) as (old, connections, url),
        before([WHOLE]) as (new, _, other),
    ):
        leads_to = {"port": url.origin[2]}
        resolve = connections.loop.getaddrinfo

        async def resolved(host, port, **options):
            return await resolve("127.0.0.1", leads_to["port"], **options)

        monkeypatch.setattr(connections.loop, "getaddrinfo", resolved)
        for _ in range(2):
            assert await all_of(await send(connections, url)) == b"{}\r\n"
        leads_to["port"] = other.origin[2]
        if asked == "later":
            clock.move(module.RENEW_S + 1)
            await all_of(await send(connections, url))  # by the connection that there is, the last
        await all_of(await send(connections, url))
        assert (old.connections, len(new.requests)) == (1, asked == "later")


async def test_nothing_listens():
    async with before() as (_, _, url):
        pass
    with pytest.raises(EngineRefused):
        await send(Connections(), url)


async def test_the_name_of_an_engine_may_be_unknown():
    with pytest.raises(socket.gaierror):
        await send(Connections(), Upstream("e", "http://nowhere.invalid:1"))


async def test_whoever_stops_waiting_for_a_connection_makes_none():
    async with before([WHOLE]) as (engine, connections, url):
        taken = Taken()
        waiting = asyncio.create_task(send(connections, url, taken=taken))
        await asyncio.sleep(0)
        taken.answer.close()
        await all_of(await send(connections, url))  # one that is made, later
        waiting.cancel()
        assert (len(engine.requests), engine.connections) == (1, 1)
        assert taken.error is None


async def test_what_waits_too_long_for_its_next_call_is_closed(monkeypatch):
    monkeypatch.setattr(module, "KEEPALIVE_S", 0.05)
    async with before([WHOLE], [WHOLE]) as (engine, connections, url):
        await all_of(await send(connections, url))
        while not engine.closed:
            await asyncio.sleep(0.01)
        await all_of(await send(connections, url))
        assert engine.connections == 2


async def test_only_what_may_be_repeated_is_sent_again_when_a_kept_connection_was_closed():
    """Closed while it waited: it is seen as soon as the loop looks; until then it is used."""
    for method, tries in (("GET", 1), ("POST", 0)):
        async with before([WHOLE], [None], [WHOLE]) as (engine, connections, url):
            await all_of(await send(connections, url, b"", method=method))
            if tries:
                await all_of(await send(connections, url, b"", method=method))
                assert engine.connections == 2
            else:
                with pytest.raises(ConnectionBroke):
                    await send(connections, url, b"", method=method)


@pytest.mark.parametrize("value", [b"a\r\nb: c", b"a\nb", b"a\0"])
async def test_no_header_can_become_two(value):
    async with before([WHOLE]) as (engine, connections, url):
        with pytest.raises(ValueError, match="line break"):
            await send(connections, url, headers={b"accept": value})
        assert not engine.connections
    with pytest.raises(ValueError, match="line break"):
        header_lines([b"x: " + value])


async def test_a_head_asks_for_no_body():
    head = WHOLE[: WHOLE.index(b"\r\n\r\n") + 4]
    async with before([head], [WHOLE]) as (engine, connections, url):
        assert await all_of(await send(connections, url, b"", method="HEAD")) == b""
        await all_of(await send(connections, url))
        assert engine.connections == 2


async def test_who_is_full_may_take_as_long_as_it_likes(clock):
    size = 8 << 20
    head = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % size
    async with before([head, *[b"x" * (1 << 20)] * 8]) as (_, connections, url):
        answer = await send(connections, url, taken=Taken(full=True))
        await answer.until(lambda: answer.said)
        await clock.passes(10 * LIMIT_S)
        assert answer.error is None
        assert len(await all_of(answer)) == size


async def test_a_stream_that_brings_bytes_and_no_progress_is_given_up(clock):
    class NoProgress(Taken):
        def came(self, data):
            self.said.append(data)
            clock.move(LIMIT_S / 10)

    drip = [STARTED, *[b"1\r\na\r\n"] * 100_000]
    async with before(drip) as (_, connections, url):
        answer = await send(connections, url, taken=NoProgress())
        with pytest.raises(NothingCame):
            await answer.until(lambda: False)


async def test_a_stream_that_gets_on_may_take_longer_than_it_may_stand_still(clock):
    class GetsOn(Taken):
        def came(self, data):
            super().came(data)
            clock.move(LIMIT_S / 2)

    drip = [STARTED, *[b"1\r\na\r\n"] * 8, b"0\r\n\r\n"]
    async with before(drip) as (_, connections, url):
        assert await all_of(await send(connections, url, taken=GetsOn())) == b"first" + b"a" * 8


@pytest.mark.parametrize("begin", [b"HTTP/1.1 200 OK\r\nendless: ", CHUNKED[:-2] + b"endless: "])
async def test_a_header_that_never_ends_is_not_held(begin):
    async with before([begin, *[b"x" * (1 << 16)] * 64]) as (_, connections, url):
        with pytest.raises(ConnectionBroke, match="too large"):
            await all_of(await send(connections, url))
