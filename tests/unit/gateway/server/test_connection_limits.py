"""How many connections an address may have, and how many of them without a whole head."""

import asyncio
import json
from contextlib import suppress

import pytest

from kairos.gateway import HttpServer, listening_socket, serving_ports
from kairos.gateway.server import connection_limits
from kairos.gateway.server.connection_limits import ConnectionLimits
from tests.support.loop_clock import moved_clock
from tests.unit.gateway.server.test_http import GET, LIMIT_S, answering, until

ONE, OTHER = "127.0.0.1", "127.0.0.2"
ANSWERED = answering((b"content-length", b"5"))


class Transport:
    def __init__(self, host):
        self.host, self.written, self.ended = host, b"", False

    def get_extra_info(self, name):
        assert name == "peername"
        return (self.host, 1234) if self.host else ""

    def write(self, data):
        self.written += data

    def write_eof(self):
        self.ended = True

    def set_protocol(self, protocol):
        self.protocol = protocol

    def abort(self):
        self.ended = True


class Client:
    """A connection that has come, and may stay or not."""

    def __init__(self, limits, host=ONE, *, is_idle=False):
        self.is_idle = is_idle
        self.closed = self.late = False
        self.transport = Transport(host)
        self.peer = limits.admit_connection(self, self.transport)

    @property
    def stays(self):
        return self.peer is not None

    def close(self):
        self.closed = True

    def head_is_late(self):
        self.late = True


async def test_an_address_has_its_share_and_another_finds_room():
    refused = []
    limits = ConnectionLimits(100, on_refused=refused.append)
    clients = [Client(limits) for _ in range(95)]
    assert [each.stays for each in clients] == [True] * 90 + [False] * 5
    assert Client(limits, OTHER).stays
    assert {each.code for each in refused} == {"caller_share"}

    limits.forget_connection(clients[0], clients[0].peer)
    limits.forget_connection(clients[0], clients[0].peer)
    limits.forget_connection(clients[1], clients[1].peer)
    assert Client(limits).stays  # as many less as the other has taken of what was free
    assert not Client(limits).stays


async def test_alone_it_may_have_all_where_the_share_is_all():
    limits = ConnectionLimits(10, share=1)
    assert [Client(limits).stays for _ in range(11)] == [True] * 10 + [False]


@pytest.mark.parametrize(
    ("hosts", "are_one"),
    [
        (("10.0.0.1", "10.0.0.2"), False),
        (("2001:db8::1", "2001:db8::2:0:0:1"), True),
        (("2001:db8::1", "2001:db8:0:1::1"), False),
        (("::ffff:10.0.0.1", "10.0.0.1"), True),
        (("fe80::1%eth0", "fe80::2%eth0"), True),
        (("", ""), True),
    ],
)
async def test_an_address_of_ipv6_is_a_network(hosts, are_one):
    limits = ConnectionLimits(100)
    peers = [Client(limits, host).peer for host in hosts]
    assert (peers[0] is peers[1]) == are_one
    assert " " in peers[0].name  # as no tenant's name


async def test_of_many_unfinished_heads_the_oldest_of_the_same_address_end(monkeypatch):
    now = 1_000.0
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: now, raising=False)
    limits = ConnectionLimits(80)  # 18 of an address, of the 20 of all
    slow = [Client(limits) for _ in range(18)]
    others = Client(limits, OTHER)
    assert [Client(limits).late for _ in range(3)] == [False] * 3
    assert not any(each.late for each in slow)  # they may be under way as usual

    now += 2.0
    Client(limits)
    assert [each.late for each in slow] == [True] + [False] * 17
    limits.has_head(slow[1], slow[1].peer)
    Client(limits)
    assert [each.late for each in slow[:4]] == [True, False, True, False]
    assert not others.late


async def test_only_some_are_told_at_once_why_they_are_refused():
    limits = ConnectionLimits(10)
    for _ in range(9):
        Client(limits)
    refused = [Client(limits) for _ in range(connection_limits._LINGERING + 2)]
    assert [bool(each.transport.written) for each in refused[-3:]] == [True, False, False]
    assert all(each.transport.ended for each in refused)
    refused[0].transport.protocol.connection_lost(None)
    assert Client(limits).transport.written


# Over sockets


async def read(reader):
    """All that is sent until the server closes."""
    async with asyncio.timeout(LIMIT_S):
        return await reader.read()


class Served:
    """A server, and connections to it from any address of this host."""

    def __init__(self, sock):
        self.at = sock.getsockname()
        self.writers = []

    async def connect(self, host=ONE, data=b""):
        reader, writer = await asyncio.open_connection(*self.at, local_addr=(host, 0))
        self.writers.append(writer)
        writer.write(data)
        return reader, writer

    async def asked(self, host=ONE):
        """One that was answered, and is kept."""
        reader, writer = await self.connect(host, GET % b"")
        await reader.readuntil(b"whole")
        return reader, writer


@pytest.fixture
async def serve():
    """`await serve(limits)` gives what clients connect to."""
    async with asyncio.TaskGroup() as group:
        ends, started = asyncio.Event(), []

        async def run(limits, served):
            with listening_socket(ONE, 0) as sock:
                async with serving_ports({sock: HttpServer(ANSWERED, limits=limits)}, []):
                    started.append(Served(sock))
                    served.set_result(started[-1])
                    await ends.wait()
                    for each in started[-1].writers:
                        each.close()

        async def start(limits):
            served = asyncio.get_running_loop().create_future()
            group.create_task(run(limits, served))
            return await served

        yield start
        ends.set()


async def test_an_address_with_too_many_connections_is_told_so_while_another_is_served(serve):
    served = await serve(ConnectionLimits(20))
    for _ in range(18):
        await served.connect(data=b"GET / HTTP/1.1\r\n")  # none is idle
    reader, _ = await served.connect(data=GET % b"")
    head, _, body = (await read(reader)).partition(b"\r\n\r\n")
    lines = head.lower().split(b"\r\n")
    assert lines[0] == b"http/1.1 429 too many requests"
    assert {b"retry-after: 1", b"x-kairos-reason: caller_share", b"connection: close"} <= {*lines}
    error = json.loads(body)["error"]
    assert error["code"] == "caller_share"
    assert "has 18 connections already" in error["message"]
    await served.asked(OTHER)


async def test_a_flood_of_refused_connections_breaks_nothing(serve, monkeypatch):
    monkeypatch.setattr(connection_limits, "_LINGERING", 1)
    broken = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: broken.append(context))
    served = await serve(ConnectionLimits(4))
    for _ in range(3):
        await served.connect(data=b"GET / HTTP/1.1\r\n")
    refused = [await served.connect() for _ in range(4)]
    answers = [await asyncio.gather(read(reader), return_exceptions=True) for reader, _ in refused]
    assert sum(isinstance(each, bytes) and each != b"" for (each,) in answers) == 1
    assert broken == []


async def test_its_idle_connection_ends_and_the_new_one_is_served(serve):
    served = await serve(ConnectionLimits(10))
    idle, _ = await served.asked()
    for _ in range(9):
        await served.asked()
    assert await read(idle) == b""


@pytest.fixture
async def clock():
    with moved_clock() as clock:
        yield clock


async def test_a_head_that_drips_ends_in_time_and_others_are_served(serve, clock):
    limits = ConnectionLimits()
    served = await serve(limits)
    kept, again = await served.asked()
    again.write(b"GET / HTTP/1.1\r\n")  # its second
    silent, _ = await served.connect()
    reader, writer = await served.connect(data=b"GET / HTTP/1.1\r\n")
    await until(lambda: limits._unfinished == 3)

    async def drip():
        while True:
            writer.write(b"x: y\r\n")
            await asyncio.sleep(0.02)

    dripping = asyncio.create_task(drip())
    clock.move(connection_limits.HEAD_S)
    assert (await read(kept)).startswith(b"HTTP/1.1 408 ")
    with suppress(ConnectionResetError):  # what drips on meets a closed connection
        assert (await read(reader)).startswith(b"HTTP/1.1 408 ")
    assert await read(silent) == b""
    dripping.cancel()

    idle, _ = await served.asked()
    later, _ = await served.connect()
    await until(lambda: limits._unfinished == 1)
    clock.move(connection_limits.HEAD_S)
    assert await read(later) == b""
    assert not idle.at_eof()  # it waits for nothing


async def test_a_body_may_take_longer_than_a_head(serve, clock):
    limits = ConnectionLimits()
    served = await serve(limits)
    head = b"GET / HTTP/1.1\r\nhost: a\r\ncontent-length: 2\r\n\r\n"
    reader, writer = await served.connect(data=head + b"x")
    await reader.readuntil(b"whole")
    later, _ = await served.connect()
    await until(lambda: limits._unfinished == 1)
    clock.move(connection_limits.HEAD_S)
    assert await read(later) == b""  # it has been looked at
    writer.write(b"y" + GET % b"")
    await asyncio.wait_for(reader.readuntil(b"whole"), LIMIT_S)


async def test_thousands_that_leave_at_once_are_closed_a_few_in_a_turn():
    limits, closed, turns = ConnectionLimits(), [], []

    class Leaves:
        def close(self):
            closed.append(self)

    for _ in range(1_000):
        limits.close_soon(Leaves())
    while len(closed) < 1_000:
        await asyncio.sleep(0)
        turns.append(len(closed))
    assert len(turns) > 10
    assert all(b - a <= connection_limits._CLOSED for a, b in zip([0, *turns], turns, strict=False))
