"""How a service of Kairos answers HTTP, and runs what else it does beside that."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Coroutine, Iterable, Iterator, Mapping
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from uvicorn.server import ServerState

from kairos.errors import SetupError
from kairos.live.frontend.connection import CallTaker, Connection
from kairos.live.frontend.connection_limits import ConnectionLimits
from kairos.live.frontend.port_tls import PortTls
from kairos.live.frontend.tls_transport import TlsTransport
from kairos.live.process.pace import LoopPace

GRACE_S = 10  # for running calls, once told to stop


class Server(uvicorn.Server):
    """uvicorn that says when it listens, and leaves signals to the command."""

    def __init__(self, settings: uvicorn.Config) -> None:
        super().__init__(settings)
        self.ready = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.ready.set()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Calls that run still when their time is up end as if their clients had left."""
        await super().shutdown(sockets)
        for each in list(self.server_state.connections):
            assert isinstance(each, Connection)
            each.abort()

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


def server_of(
    app: ASGIApp,
    calls: CallTaker | None = None,
    limits: ConnectionLimits | None = None,
    tls: PortTls | None = None,
) -> Server:
    """`calls`: who takes the requests that are calls; `app` has all others."""
    pace = LoopPace() if calls is None else calls.pace
    within = ConnectionLimits() if limits is None else limits

    def connection(*, server_state: ServerState, **_: Any) -> asyncio.Protocol:
        made = Connection(app, calls, pace, within, server_state)
        return made if tls is None else TlsTransport(made, tls.context(), pace, tls.failed)

    return Server(
        uvicorn.Config(
            app,
            http=connection,  # type: ignore[arg-type]  # it makes protocols
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
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


def url_of(sock: socket.socket, *, has_tls: bool = False) -> str:
    host, port = sock.getsockname()[:2]
    scheme = "https" if has_tls else "http"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
