"""HTTP servers of a service with the TLS of their ports, and its background tasks."""

import asyncio
import contextlib
import logging
import socket
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from kairos.core import SetupError
from kairos.gateway.server.connection import Connection
from kairos.gateway.server.connection_limits import ConnectionLimits
from kairos.gateway.server.cors import WebPages
from kairos.gateway.server.tls_transport import TlsTransport
from kairos.host import FreshContext, LoopPace
from kairos.request import ASGIApp
from kairos.settings import Settings, TlsFiles, server_context

if TYPE_CHECKING:
    from kairos.gateway.api.gateway import Gateway


logger = logging.getLogger(__name__)

GRACE_S = 10  # for running calls, after the stop
_BACKLOG = 2048  # connections that wait to be accepted
_LOOK_S = 0.01  # between two looks whether all has ended


_TOLD_S = 60.0  # between two log lines on failed handshakes

# What `ServiceTls.change` takes over; see `Reload` for the first.
TLS_SETTINGS = ("tls_certificate", "tls_key", "tls_client_ca", "admin_tls_client_ca")


class PortTls:
    def __init__(
        self, name: str, files: TlsFiles, now_s: Callable[[], float] = time.monotonic
    ) -> None:
        """Load the files. `name` is the port's name in the log.

        Raises SetupError: A file cannot be used.
        """
        self._name, self._now_s = name, now_s
        self.context = FreshContext(name, files, server_context, now_s)  # for a new client
        self._failed = 0  # since the log told of it
        self._told_s: float | None = None

    def use_files(self, files: TlsFiles | None) -> None:
        """Use other files, after a reload of the settings."""
        if files is None:
            logger.warning("%s keeps TLS until the next restart", self._name)
        else:
            self.context.use_files(files)

    def count_failure(self, why: str, address: str) -> None:
        """Count a failed handshake.

        They are logged once a minute: there may be thousands a second.
        """
        self._failed += 1
        now_s = self._now_s()
        if self._told_s is None or now_s - self._told_s >= _TOLD_S:
            how_often = "a handshake" if self._failed == 1 else f"{self._failed} handshakes"
            logger.warning(
                "TLS: %s failed at %s; the last, of a client %s: %s",
                how_often,
                self._name,
                address,
                why,
            )
            self._failed, self._told_s = 0, now_s


class HttpServer:
    """Server of one port, which accepts connections until it is stopped. It handles no signals."""

    def __init__(
        self,
        app: ASGIApp,
        calls: "Gateway | None" = None,
        limits: ConnectionLimits | None = None,
        tls: PortTls | None = None,
        pages: WebPages | None = None,
    ) -> None:
        """Create the server.

        `calls` takes the requests that are calls; `app` all others. `pages` answers OPTIONS.
        """
        self.app, self.calls, self.pages = app, calls, pages
        self.pace = LoopPace() if calls is None else calls.pace
        self.limits = ConnectionLimits() if limits is None else limits
        self.connections: set[Connection] = set()
        self.tasks: set[asyncio.Task[None]] = set()  # answers by `app`
        self._tls = tls
        self.ready, self._stopping = asyncio.Event(), asyncio.Event()

    def stop(self) -> None:
        self._stopping.set()

    async def serve(self, sock: socket.socket) -> None:
        """Accept connections at the socket until stopped.

        It also shuts down in order when cancelled: otherwise the loop would watch closed sockets.
        """
        loop = asyncio.get_running_loop()
        server = await loop.create_server(self._connection, sock=sock, backlog=_BACKLOG)
        self.ready.set()
        with contextlib.suppress(asyncio.CancelledError):
            await self._stopping.wait()
        server.close()
        sock.close()
        await self._shut_down()

    def _connection(self) -> asyncio.Protocol:
        made, tls = Connection(self), self._tls
        if tls is None:
            return made
        return TlsTransport(made, tls.context(), self.pace, tls.count_failure)

    async def _shut_down(self) -> None:
        """Close connections as their calls end; cancel the remaining ones after a grace period."""
        await asyncio.sleep(_LOOK_S)  # what was accepted last becomes a connection
        for each in list(self.connections):
            each.shutdown()
        try:
            await asyncio.wait_for(self._all_ended(), GRACE_S)
        except TimeoutError:
            logger.warning("%d requests were still running, and are cancelled", len(self.tasks))
            for task in self.tasks:
                task.cancel()
            for each in list(self.connections):
                each.abort()

    async def _all_ended(self) -> None:
        while self.connections or self.tasks:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(_LOOK_S)


@contextlib.asynccontextmanager
async def serving_ports(
    servers: Mapping[socket.socket, HttpServer], background: Iterable[Coroutine[None, None, None]]
) -> AsyncIterator[None]:
    """Run servers and background tasks during the block. An error in any of them ends the block."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(each) for each in background]
            for sock, server in servers.items():
                group.create_task(server.serve(sock))
            try:
                for server in servers.values():
                    await server.ready.wait()
                yield
            finally:
                for server in servers.values():
                    server.stop()
                for task in tasks:
                    task.cancel()
    except BaseExceptionGroup as group_error:
        if len(group_error.exceptions) == 1:
            raise group_error.exceptions[0] from None
        raise


@contextlib.contextmanager
def listening_socket(host: str, port: int, *, shared: bool = False) -> Iterator[socket.socket]:
    """Yield a listening socket. `shared`: other sockets of the same user may share the port."""
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
        sock.listen(_BACKLOG)
        yield sock


def url_of(sock: socket.socket, *, has_tls: bool = False) -> str:
    host, port = sock.getsockname()[:2]
    scheme = "https" if has_tls else "http"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


class ServiceTls:
    """TLS of a service's ports: None where a port has none."""

    def __init__(self, settings: Settings) -> None:
        """Load the files of the settings. Raises SetupError: A file cannot be used."""
        self.callers, self.operators = (
            None if files is None else PortTls(f"the {name}' port", files)
            for name, files in zip(("callers", "operators"), _files(settings), strict=True)
        )

    @property
    def is_on(self) -> bool:
        return self.callers is not None

    def changes(self) -> dict[str, Callable[[Settings], None]]:
        """Return the changes for `Reload`; none without TLS, which needs a restart to begin."""
        if not self.is_on:
            return {}
        return dict.fromkeys(TLS_SETTINGS, lambda _: None) | {TLS_SETTINGS[0]: self.change_files}

    def change_files(self, settings: Settings) -> None:
        """Apply reloaded settings, and read the files again. Unusable files change nothing."""
        for port, files in zip((self.callers, self.operators), _files(settings), strict=True):
            if port is not None:
                port.use_files(files)


def _files(settings: Settings) -> tuple[TlsFiles | None, TlsFiles | None]:
    """Return the files of the callers' port, and of the operators', whose client CA may differ."""
    if settings.tls_certificate is None:
        return None, None
    authorities = settings.tls_client_ca, settings.admin_tls_client_ca or settings.tls_client_ca
    pair = settings.tls_certificate, settings.tls_key
    callers, operators = (TlsFiles(*pair, each) for each in authorities)
    return callers, operators
