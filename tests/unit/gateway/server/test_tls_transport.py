"""TLS on clients' connections, over sockets: clients are OpenSSL by asyncio, or bytes by hand."""

import asyncio
import contextlib
import gc
import json
import socket
import ssl
import weakref
from unittest import mock

import pytest

from kairos.gateway import HttpServer, listening_socket, serving_ports
from kairos.gateway.server import connection_limits
from kairos.gateway.server.connection_limits import ConnectionLimits
from kairos.gateway.server.http import PortTls
from kairos.gateway.server.tls_transport import TlsTransport
from kairos.host import LoopPace, start_child
from kairos.request import CLIENT_KEY
from kairos.settings import TlsFiles, client_context
from tests.support.certificates import Authority
from tests.unit.gateway.server.test_http import GET, answering, until

ANSWERED = answering((b"content-length", b"5"))
LARGE = bytes(range(256)) * 4_000  # a megabyte: dozens of records


@pytest.fixture
def authority(tmp_path):
    return Authority(tmp_path)


@pytest.fixture
def trusting(authority):
    """A client's context."""
    return client_context(TlsFiles(ca=authority.ca))


@pytest.fixture
def failures():
    """Of handshakes: why, and from where."""
    return []


@pytest.fixture
async def serve(authority, failures):
    """`await serve(app)` gives the address of a server. `ca`: of its clients."""
    async with asyncio.TaskGroup() as group:
        ends = asyncio.Event()

        async def run(made, served):
            with listening_socket("127.0.0.1", 0) as sock:
                async with serving_ports({sock: made}, []):
                    served.set_result(sock.getsockname())
                    await ends.wait()

        async def start(app=ANSWERED, *, ca=None, limits=None):
            files = authority.issue()
            tls = PortTls("a port", TlsFiles(files.certificate, files.key, ca))
            tls.count_failure = lambda why, address: failures.append((why, address))
            served = asyncio.get_running_loop().create_future()
            group.create_task(run(HttpServer(app, limits=limits, tls=tls), served))
            return await served

        yield start
        ends.set()


@contextlib.asynccontextmanager
async def connected(address, context=None, **given):
    reader, writer = await asyncio.open_connection(*address, ssl=context, **given)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


async def whole(reader):
    """All that is sent until the server closes."""
    async with asyncio.timeout(60):
        return await reader.read()


async def echoing(scope, receive, send):
    body, more = b"", True
    while more:
        message = await receive()
        body, more = body + message.get("body", b""), message.get("more_body", False)
    await answering((b"content-length", b"%d" % len(body)), parts=(body,))(scope, receive, send)


async def test_requests_on_one_connection_are_answered_in_turn(serve, trusting):
    address = await serve()
    async with connected(address, trusting) as (reader, writer):
        for _ in range(3):
            writer.write(GET % b"")
            assert (await reader.readuntil(b"whole")).startswith(b"HTTP/1.1 200 OK")
        told = writer.get_extra_info("ssl_object")
        assert told.version() == "TLSv1.3"
        assert told.selected_alpn_protocol() == "http/1.1"


async def test_an_application_is_told_of_the_scheme(serve, trusting):
    told = []

    async def app(scope, receive, send):
        told.append(scope["scheme"])
        await ANSWERED(scope, receive, send)

    async with connected(await serve(app), trusting) as (reader, writer):
        writer.write(GET % b"")
        await reader.readuntil(b"whole")
    assert told == ["https"]


async def test_bodies_of_many_records_come_and_go_whole(serve, trusting):
    address = await serve(echoing)
    async with connected(address, trusting) as (reader, writer):
        for _ in range(2):
            writer.write(b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: %d\r\n\r\n" % len(LARGE))
            writer.write(LARGE)
            await reader.readuntil(b"\r\n\r\n")
            assert await reader.readexactly(len(LARGE)) == LARGE


async def test_what_openssl_takes_in_pieces_is_sent_whole(serve, trusting, monkeypatch):
    class Short(ssl.SSLObject):
        def write(self, data):
            return super().write(data[:1000])

    monkeypatch.setattr(ssl.SSLContext, "sslobject_class", Short)
    address = await serve(answering((b"content-length", b"%d" % len(LARGE)), parts=(LARGE,)))
    async with connected(address, trusting) as (reader, writer):
        writer.write(GET % b"")
        await reader.readuntil(b"\r\n\r\n")
        assert await reader.readexactly(len(LARGE)) == LARGE


async def test_a_client_that_wants_to_renegotiate_is_told_no(serve, authority):
    host, port = await serve()
    client = await start_child(
        *("openssl", "s_client", "-connect", f"{host}:{port}", "-CAfile", authority.ca, "-msg"),
        "-tls1_2",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    async with asyncio.timeout(60):
        while b"Verify return code: 0" not in await client.stdout.readline():
            pass
        client.stdin.write(b"R\n")
        told = b""
        while not (told.startswith(b"<<<") and b"no_renegotiation" in told):
            told = await client.stdout.readline()
            assert told
        client.kill()
        await client.communicate()


async def test_parts_of_an_answer_come_when_they_are_made(serve, trusting):
    release = asyncio.Event()

    async def app(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"first", "more_body": True})
        await release.wait()
        await send({"type": "http.response.body", "body": b"second"})

    async with connected(await serve(app), trusting) as (reader, writer):
        writer.write(GET % b"")
        await reader.readuntil(b"first\r\n")
        release.set()
        assert (await reader.readuntil(b"0\r\n\r\n")).startswith(b"6\r\nsecond")


async def test_a_client_that_does_not_read_holds_up_what_it_asked_for(serve, trusting):
    sent = found = most = 0  # the last: that were on their way
    client = asyncio.get_running_loop().create_future()

    async def app(scope, receive, send):
        nonlocal sent, most
        client.set_result(scope[CLIENT_KEY])
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in range(100):
            await send({"type": "http.response.body", "body": LARGE, "more_body": True})
            sent += 1
            most = max(most, sent * len(LARGE) - found)
        await send({"type": "http.response.body"})

    async with connected(await serve(app), trusting, limit=1 << 16) as (reader, writer):
        writer.write(GET % b"")
        answered = await client
        await until(lambda: sent == 100 or not answered.keeps_up)
        async with asyncio.timeout(60):
            while sent < 100:
                found += len(await reader.read(1 << 20))
        assert len(LARGE) < most < 50 * len(LARGE)  # what sockets hold


class ByHand:
    """A client's side of TLS, whose bytes a test sends as it likes."""

    def __init__(self, context):
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(self.incoming, self.outgoing, server_hostname="localhost")

    async def shake_hands(self, reader, writer, pieces=1 << 20):
        while True:
            try:
                self.tls.do_handshake()
            except ssl.SSLWantReadError:
                await self.send(writer, pieces)
                self.incoming.write(await reader.read(1 << 16))
            else:
                await self.send(writer, pieces)
                return

    async def send(self, writer, pieces=1 << 20):
        said = self.outgoing.read()
        for start in range(0, len(said), pieces):
            writer.write(said[start : start + pieces])
            await asyncio.sleep(0)

    async def read(self, reader):
        while True:
            try:
                return self.tls.read(1 << 16)
            except ssl.SSLWantReadError:
                data = await reader.read(1 << 16)
                assert data, "closed without a goodbye"
                self.incoming.write(data)


async def test_a_handshake_and_a_request_may_come_byte_by_byte(serve, trusting):
    address = await serve()
    async with asyncio.timeout(60), connected(address) as (reader, writer):
        client = ByHand(trusting)
        await client.shake_hands(reader, writer, pieces=1)
        client.tls.write(GET % b"")
        await client.send(writer, pieces=1)
        assert (await client.read(reader)).endswith(b"whole")


async def test_the_server_says_goodbye_before_it_closes(serve, trusting):
    address = await serve()
    async with asyncio.timeout(60), connected(address) as (reader, writer):
        client = ByHand(trusting)
        await client.shake_hands(reader, writer)
        client.tls.write(b"GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n")
        await client.send(writer)
        assert (await client.read(reader)).endswith(b"whole")
        assert await client.read(reader) == b""  # nothing was cut off


@pytest.mark.parametrize("how", ["goodbye", "cut", "garbage"])
async def test_a_client_that_leaves_in_a_call_has_left(serve, trusting, how, monkeypatch):
    asked, left, soon = asyncio.Event(), asyncio.Event(), []
    close_soon = ConnectionLimits.close_soon
    monkeypatch.setattr(
        ConnectionLimits,
        "close_soon",
        lambda self, transport: (soon.append(transport), close_soon(self, transport)),
    )

    async def app(scope, receive, send):
        asked.set()
        while (await receive())["type"] != "http.disconnect":
            pass
        left.set()

    address = await serve(app)
    async with asyncio.timeout(60), connected(address) as (reader, writer):
        client = ByHand(trusting)
        await client.shake_hands(reader, writer)
        client.tls.write(GET % b"")
        await client.send(writer)
        await asked.wait()
        if how == "goodbye":
            with contextlib.suppress(ssl.SSLWantReadError):
                client.tls.unwrap()
            await client.send(writer)
        elif how == "cut":
            writer.write_eof()
        else:
            writer.write(b"\x17\x03\x03\x00\x20" + b"x" * 32)
        await left.wait()
    assert bool(soon) == (how != "garbage")  # thousands may leave at once


@pytest.mark.parametrize("method", ["GET", "DELETE", "OPTIONS"])
async def test_who_speaks_http_alone_is_told_what_is_needed(serve, failures, method):
    async with connected(await serve()) as (reader, writer):
        writer.write(b"%b / HTTP/1.1\r\nhost: a\r\n\r\n" % method.encode())
        head, _, body = (await whole(reader)).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 ")
    error = json.loads(body)["error"]
    assert error["code"] == "https_needed"
    assert "https://" in error["message"]
    assert failures == [("it spoke HTTP without TLS", "at 127.0.0.1")]


@pytest.mark.parametrize("said", [b"\x00" * 100, b"\x16\x03\x01\x00\x05hello", b"\x80" * 9, b"\n"])
async def test_what_is_no_handshake_ends_the_connection(serve, failures, said):
    async with connected(await serve()) as (reader, writer):
        writer.write(said)
        if len(said) < 5:
            writer.write_eof()
        assert b"HTTP" not in await whole(reader)
    assert len(failures) == (len(said) >= 5)


async def test_an_old_version_is_refused(serve, trusting, failures):
    with pytest.warns(DeprecationWarning, match="TLSv1"):
        trusting.minimum_version = ssl.TLSVersion.TLSv1
    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        trusting.maximum_version = ssl.TLSVersion.TLSv1_1
    trusting.set_ciphers("ALL:@SECLEVEL=0")
    address = await serve()
    with pytest.raises(ssl.SSLError, match="ALERT_PROTOCOL_VERSION"):  # it is told why
        async with connected(address, trusting):
            pass
    assert failures == [("UNSUPPORTED_PROTOCOL", "at 127.0.0.1")]


async def test_who_must_show_a_certificate_and_shows_none_or_anothers_is_refused(
    serve, authority, failures, tmp_path
):
    address = await serve(ca=authority.ca)
    stranger = Authority(tmp_path, "stranger").issue("stranger")
    for files in (TlsFiles(), stranger):
        context = client_context(TlsFiles(files.certificate, files.key, authority.ca))
        said = b""
        # In TLS 1.3 a client is done before the server has looked at its certificate.
        with contextlib.suppress(ssl.SSLError, ConnectionError):
            async with connected(address, context) as (reader, writer):
                writer.write(GET % b"")
                said = await whole(reader)
        assert said == b""
    assert [why for why, _ in failures] == [
        "PEER_DID_NOT_RETURN_A_CERTIFICATE",
        "CERTIFICATE_VERIFY_FAILED",
    ]
    own = authority.issue("client")
    context = client_context(TlsFiles(own.certificate, own.key, authority.ca))
    async with connected(address, context) as (reader, writer):
        writer.write(GET % b"")
        await reader.readuntil(b"whole")


# Bounds


async def test_half_open_handshakes_count_and_are_ended_in_time(serve, trusting, monkeypatch):
    monkeypatch.setattr(connection_limits, "HEAD_S", 0.3)
    monkeypatch.setattr(connection_limits, "_LOOK_S", 0.1)
    hello = ByHand(trusting)
    with contextlib.suppress(ssl.SSLWantReadError):
        hello.tls.do_handshake()
    first = hello.outgoing.read()
    for said in (b"", first[:100], first):
        async with connected(await serve()) as (reader, writer):
            writer.write(said)
            assert b"HTTP" not in await whole(reader)


async def test_an_address_with_half_open_handshakes_has_its_share_of_connections(
    serve, trusting, monkeypatch
):
    monkeypatch.setattr(connection_limits, "_LINGER_S", 60.0)  # the client need not wait so long
    limits = ConnectionLimits(20)
    address = await serve(limits=limits)
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(18):
            await stack.enter_async_context(connected(address))
        for host, status in (("127.0.0.1", b"429"), ("127.0.0.2", b"200")):
            async with connected(address, trusting, local_addr=(host, 0)) as (reader, writer):
                writer.write(b"GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n")
                said = await whole(reader)
                assert said.startswith(b"HTTP/1.1 " + status)  # why, over TLS
                assert (b"caller_share" in said) == (status == b"429")
    async with asyncio.timeout(60):
        while limits._connections:
            await asyncio.sleep(0.01)


async def test_handshakes_wait_where_there_is_no_time_and_those_of_others_take_turns(
    serve, trusting, monkeypatch
):
    steps = []

    class Busy(LoopPace):
        def may_begin(self):
            return False

        def wait(self, caller, step, *arguments):
            steps.append((caller, step))

    monkeypatch.setattr("kairos.gateway.server.http.LoopPace", Busy)
    address = await serve()
    connecting = asyncio.create_task(
        asyncio.open_connection(*address, ssl=trusting, local_addr=("127.0.0.3", 0))
    )
    async with asyncio.timeout(60):
        while not connecting.done():
            if steps:
                caller, step = steps.pop(0)
                assert caller == ("at 127.0.0.3", "shakes hands")
                raw = step.__self__._raw
                assert not raw.is_reading()
                step()
                assert raw.is_reading()
            await asyncio.sleep(0.01)
        _, writer = await connecting
    writer.transport.abort()


async def test_who_leaves_while_its_handshake_waits_is_forgotten(serve, monkeypatch):
    steps, stepped, limits = [], mock.Mock(), ConnectionLimits(20)
    monkeypatch.setattr(TlsTransport, "_step", stepped)
    monkeypatch.setattr(LoopPace, "may_begin", lambda self: False)
    monkeypatch.setattr(LoopPace, "wait", lambda self, caller, step: steps.append(step))
    address = await serve(limits=limits)
    async with asyncio.timeout(60):
        with socket.create_connection(address) as sock:
            sock.send(b"\x16\x03\x01")
            while not steps:
                await asyncio.sleep(0.01)
        for each in list(limits._peers.values()):
            for connection in list(each.connections):
                connection.close()
        while limits._connections:
            await asyncio.sleep(0.01)
    steps[0]()
    stepped.assert_not_called()


async def test_a_connection_leaves_nothing_to_the_garbage_collector(serve, trusting):
    limits = ConnectionLimits()
    address = await serve(limits=limits)

    async def ask(times):
        for _ in range(times):
            async with connected(address, trusting) as (reader, writer):
                writer.write(GET % b"")
                await reader.readuntil(b"whole")
            await until(lambda: not limits._connections)

    await ask(3)
    gc.collect()
    gc.disable()
    try:
        known = weakref.WeakSet()
        made = TlsTransport.connection_made
        with mock.patch.object(
            TlsTransport,
            "connection_made",
            lambda self, transport: (known.add(self), made(self, transport)),
        ):
            await ask(20)
        assert len(known) <= 1
    finally:
        gc.enable()
