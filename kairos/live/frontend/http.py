"""How a service of Kairos answers HTTP, and runs what else it does beside that."""

import asyncio
import contextlib
import re
import socket
import urllib.parse
from collections.abc import AsyncIterator, Coroutine, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

import httptools
import uvicorn
from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)

from kairos.errors import SetupError
from kairos.live.process.pace import LoopPace
from kairos.live.request.client_response import CLIENT, Leaving, Scope

GRACE_S = 10  # for running calls, once told to stop


# In what is sent as a header; line breaks are counted.
_CONTROL = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")


class UnsafeHeader(Exception):
    """A header of an answer would end its line early, or is none."""


class _Cycle(RequestResponseCycle):
    """uvicorn's, which writes with fewer steps: the head goes out with the first of the body, and
    headers are looked through once, all together. Who serves is told when the client leaves."""

    leaving: Leaving
    _head: bytes | None = None  # not sent yet

    async def run_asgi(self, app: Any) -> None:
        async def served(*arguments: Any) -> None:
            try:
                await app(*arguments)
            finally:
                self._send_head()  # of an answer that has no body, and never will
                # Else each would wait for the garbage collector: the scope names this cycle.
                self.scope.pop(CLIENT, None)  # type: ignore[misc]  # not a key of ASGI

        await super().run_asgi(served)

    async def send(self, message: Any) -> None:
        """For what answers as an ASGI application does."""
        if message["type"] == "http.response.start":
            self.start(message["status"], message["headers"])
        elif not self.write(message.get("body", b""), more=message.get("more_body", False)):
            await self.drained()

    def take_body(self) -> bytes | None:
        """See `exchange.Client`."""
        if self.more_body or self.disconnected:
            return None
        body, self.body = bytes(self.body), bytearray()
        self.message_event.clear()
        return body

    async def drained(self) -> None:
        if self.flow.write_paused and not self.disconnected:
            await self.flow.drain()

    def start(self, status: int, headers: Iterable[tuple[bytes, bytes]]) -> None:
        if self.disconnected:
            return
        assert not self.response_started
        lines = [STATUS_LINE[status]]
        self.chunked_encoding = self.scope["method"] != "HEAD" and status not in (204, 304)
        for name, value in headers:
            if name == b"content-length":
                self.chunked_encoding = False
                self.expected_content_length = int(value)
            elif name == b"connection":  # ours to say
                self.keep_alive &= value.strip().lower() != b"close"
                continue
            lines.append(b"%b: %b\r\n" % (name, value))
        if not self.keep_alive:
            lines.append(b"connection: close\r\n")
        if self.chunked_encoding:
            lines.append(b"transfer-encoding: chunked\r\n")
        head = b"".join(lines)
        if head.count(b"\n") != len(lines) or head.count(b"\r") != len(lines):
            raise UnsafeHeader
        if _CONTROL.search(head):
            raise UnsafeHeader
        self.response_started, self.waiting_for_100_continue = True, False
        self._head = head + b"\r\n"

    def write(self, data: bytes, *, more: bool) -> bool:
        """See `exchange.Client`."""
        if self.disconnected:
            return True
        assert self.response_started
        assert not self.response_complete
        self._body(data, more=more)
        return not self.flow.write_paused

    def _body(self, body: bytes, *, more: bool) -> None:
        if self.scope["method"] == "HEAD":
            body, self.expected_content_length = b"", 0
        elif self.chunked_encoding:
            body = b"%x\r\n%b\r\n" % (len(body), body) if body else b""
            if not more:
                body += b"0\r\n\r\n"
        else:
            self.expected_content_length -= len(body)
            assert self.expected_content_length >= 0, "longer than it was said to be"
        head, self._head = self._head or b"", None
        self.transport.write(head + body)
        if more:
            return
        assert self.expected_content_length == 0, "shorter than it was said to be"
        self.response_complete = True
        self.message_event.set()
        if not self.keep_alive:
            self.transport.close()
        self.on_response()

    def _send_head(self) -> None:
        head, self._head = self._head, None
        if head is not None and not self.disconnected:
            self.transport.write(head)


class _Connection(HttpToolsProtocol):
    """uvicorn's, which tells only the latest request of a connection when the client leaves; here
    those before it, on which a client that sends requests ahead does not wait, are told too."""

    cycle: _Cycle | None  # type: ignore[assignment]

    def __init__(self, pace: LoopPace, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._pace = pace
        self._earlier: list[_Cycle] = []

    def on_headers_complete(self) -> None:
        """As in uvicorn, without web sockets and a limit of its own."""
        scope: Scope = self.scope  # type: ignore[assignment]
        before = self.cycle
        scope["method"] = self.parser.get_method().decode("ascii")
        version = self.parser.get_http_version()
        if version != "1.1":
            scope["http_version"] = version
        url = httptools.parse_url(self.url)
        path = url.path.decode("ascii")
        scope["raw_path"], scope["query_string"] = url.path, url.query or b""
        scope["path"] = urllib.parse.unquote(path) if "%" in path else path
        self.cycle = _Cycle(
            scope=self.scope,
            transport=self.transport,
            flow=self.flow,
            logger=self.logger,
            access_logger=self.access_logger,
            access_log=False,
            default_headers=[],
            message_event=asyncio.Event(),
            expect_100_continue=self.expect_100_continue,
            keep_alive=version != "1.0" and self.parser.should_keep_alive(),
            on_response=self.on_response_complete,
        )
        self.cycle.leaving = Leaving()
        scope[CLIENT] = self.cycle
        if self._earlier:
            self._earlier = [each for each in self._earlier if not each.response_complete]
        if before is None or before.response_complete:
            if scope["method"] == "GET":  # short: see `LoopPace`
                self._start_asgi_task(self.cycle, self.app)
            else:
                self._pace.begin(partial(self._start_asgi_task, self.cycle, self.app))
        else:
            self._earlier.append(before)
            self.flow.pause_reading()
            self.pipeline.appendleft((self.cycle, self.app))

    def on_message_complete(self) -> None:
        """A large body makes reading pause. Once it is here, what is read next may be that the
        client has gone."""
        super().on_message_complete()
        if not self.pipeline:
            self.flow.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        for cycle in self._earlier:
            cycle.disconnected = True
            cycle.message_event.set()
        super().connection_lost(exc)
        for each in (*self._earlier, self.cycle):
            if each is not None and not each.response_complete:
                each.leaving.leave()


class Server(uvicorn.Server):
    """uvicorn that says when it listens, and leaves signals to the command."""

    def __init__(self, settings: uvicorn.Config) -> None:
        super().__init__(settings)
        self.ready = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.ready.set()

    async def main_loop(self) -> None:
        """Cancelled, the server still shuts down: its loop would watch closed sockets otherwise."""
        with contextlib.suppress(asyncio.CancelledError):
            await super().main_loop()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@contextlib.asynccontextmanager
async def serving(
    servers: Mapping[socket.socket, Server],
    background: Iterable[Coroutine[None, None, None]],
) -> AsyncIterator[None]:
    """Everything that runs beside the block; whatever of it breaks, breaks the block too."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(each) for each in background]
            for sock, server in servers.items():
                group.create_task(server.serve([sock]))
            try:
                for server in servers.values():
                    await server.ready.wait()
                yield
            finally:
                for server in servers.values():
                    server.should_exit = True
                for task in tasks:
                    task.cancel()
    except BaseExceptionGroup as group_error:
        if len(group_error.exceptions) == 1:
            raise group_error.exceptions[0] from None
        raise


def server_of(app: object) -> Server:
    return Server(
        uvicorn.Config(
            app,  # type: ignore[arg-type]  # uvicorn's ASGI types are narrower than Starlette's
            http=partial(_Connection, LoopPace()),  # type: ignore[arg-type]  # it makes protocols
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            date_header=False,
            proxy_headers=False,
            timeout_keep_alive=75,
            timeout_graceful_shutdown=GRACE_S,
        )
    )


@contextlib.contextmanager
def listen(host: str, port: int, *, shared: bool = False) -> Iterator[socket.socket]:
    """`shared`: with other sockets of the same user that say so too."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # With the protocol named, asyncio sets TCP_NODELAY on accepted connections; uvloop always does.
    sock = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if shared:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    with contextlib.closing(sock):
        try:
            sock.bind((host, port))
        except OSError as error:
            raise SetupError(
                f"cannot listen on {host}:{port}: {error.strerror}; choose another with --port "
                "(or --admin-port)"
            ) from None
        sock.listen(2048)
        yield sock


def url_of(sock: socket.socket) -> str:
    host, port = sock.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
