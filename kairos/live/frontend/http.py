"""How a service of Kairos answers HTTP, and runs what else it does beside that."""

import asyncio
import contextlib
import logging
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

logger = logging.getLogger(__name__)

GRACE_S = 10  # for running calls, once told to stop
_LOOK_S = 0.01  # between two looks whether all has ended


class Server(uvicorn.Server):
    """uvicorn that says when it listens, stops at once, and leaves signals to the command."""

    def __init__(self, settings: uvicorn.Config) -> None:
        super().__init__(settings)
        self.ready, self._stopping = asyncio.Event(), asyncio.Event()

    def stop(self) -> None:
        self.should_exit = True
        self._stopping.set()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.ready.set()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Calls that run still when their time is up end as if their clients had left."""
        for listening in (*self.servers, *(sockets or ())):
            listening.close()
        await asyncio.sleep(_LOOK_S)  # what was accepted last becomes a connection
        running = self.server_state
        for each in list(running.connections):
            each.shutdown()
        try:
            await asyncio.wait_for(_all_ended(running), self.config.timeout_graceful_shutdown)
        except TimeoutError:
            logger.warning("%d requests still ran, and were given up", len(running.tasks))
            for task in running.tasks:
                task.cancel()
            for each in list(running.connections):
                assert isinstance(each, Connection)
                each.abort()

    async def main_loop(self) -> None:
        """Until it is told to stop; nothing is done on uvicorn's ticks, since answers bear no date.
        Cancelled, the server still shuts down: its loop would watch closed sockets otherwise."""
        with contextlib.suppress(asyncio.CancelledError):
            await self._stopping.wait()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def _all_ended(running: ServerState) -> None:
    while running.connections or running.tasks:  # noqa: ASYNC110 - nobody tells
        await asyncio.sleep(_LOOK_S)


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
                    server.stop()
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
