"""Puts a live Kairos together and runs it inside the caller's event loop."""

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator, Coroutine, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from kairos.balancer import Balancer
from kairos.config import MAX_NUM_SEQS, EngineSettings, Settings
from kairos.dispatcher.placements import PLACEMENTS
from kairos.errors import SetupError
from kairos.events import Tick
from kairos.learner import Learner
from kairos.live.access import Access
from kairos.live.admin import build_admin
from kairos.live.clock import WallClock
from kairos.live.engine import HttpEngine, Upstream
from kairos.live.factlog import FactLog
from kairos.live.gateway import Gateway, build_app
from kairos.live.learning import learn, recall
from kairos.live.monitor import Monitor, Target
from kairos.live.store import LearntStore
from kairos.live.telemetry import Telemetry
from kairos.model import SECOND
from kairos.orchestrator.orchestrator import Orchestrator
from kairos.runtime import Observer, Runtime
from kairos.scheduler.policies import POLICIES

FLUSH_S = 1.0
TICK_S = 1.0
GRACE_S = 10  # for running calls, once told to stop


class Service:
    """A running Kairos: where it listens, and its runtime to look into."""

    def __init__(
        self, runtime: Runtime, monitor: Monitor, learner: Learner, url: str, admin_url: str
    ) -> None:
        self.runtime = runtime
        self.monitor = monitor
        self.learner = learner
        self.url = url
        self.admin_url = admin_url


@contextlib.asynccontextmanager
async def running(
    settings: Settings, observers: tuple[Observer, ...] = ()
) -> AsyncIterator[Service]:
    """Serve until the block ends; then finish running calls for at most `GRACE_S`.

    Raises:
        SetupError: a port is taken, or the log cannot be written.
    """
    balancer = Balancer(
        POLICIES[settings.policy],
        PLACEMENTS[settings.placement](),
        max_waiting=settings.max_waiting,
        max_wait_us=settings.max_wait_s * SECOND,
        idle_us=settings.workflow_idle_s * SECOND,
    )
    learner = Learner(Orchestrator(idle_us=settings.workflow_idle_s * SECOND))
    telemetry = Telemetry(balancer, learner.orchestrator)
    access = Access({key.sha256: key.tenant for key in settings.key})
    with (
        _open_log(settings.log_dir) as log,
        _listen(settings.host, settings.port) as sock,
        _listen(settings.admin_host, settings.admin_port) as admin_sock,
    ):
        store = LearntStore(settings.learnt_file) if settings.learnt_file is not None else None
        targets = [_target(each) for each in settings.engine]
        async with HttpEngine([target.upstream for target in targets]) as engine:
            kept = [each for each in (log, store) if each is not None]
            watching = (telemetry, *kept, learner.observe, *observers)
            runtime = Runtime(balancer, engine, WallClock(), watching)
            if store is not None:
                recall(runtime, learner, store)
            monitor = Monitor(runtime, targets)
            gateway = Gateway(
                runtime,
                engine,
                access,
                on_trouble=monitor.hear_of,
                on_error=telemetry.count_error,
                max_body_bytes=settings.max_body_bytes,
                max_held_bytes=settings.max_held_bytes,
            )
            servers = {
                sock: _server(
                    build_app(gateway, access, telemetry.render, runtime, learner.orchestrator)
                ),
                admin_sock: _server(build_admin(balancer, monitor)),
            }
            background = [monitor.run(), learn(runtime, learner), _give_up(runtime)]
            background += [_flush(log)] if log is not None else []
            background += [store.run()] if store is not None else []
            async with _serving(servers, background):
                yield Service(runtime, monitor, learner, _url(sock), _url(admin_sock))


class _Connection(HttpToolsProtocol):
    """uvicorn's, which tells only the latest request of a connection when the client leaves; here
    those before it, on which a client that sends requests ahead does not wait, are told too."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._earlier: list[RequestResponseCycle] = []

    def on_headers_complete(self) -> None:
        before: RequestResponseCycle | None = self.cycle
        super().on_headers_complete()
        self._earlier = [each for each in self._earlier if not each.response_complete]
        if before is not None and not before.response_complete:
            self._earlier.append(before)

    def connection_lost(self, exc: Exception | None) -> None:
        for cycle in self._earlier:
            cycle.disconnected = True
            cycle.message_event.set()
        super().connection_lost(exc)


class _Server(uvicorn.Server):
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
async def _serving(
    servers: Mapping[socket.socket, _Server],
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


def _server(app: object) -> _Server:
    return _Server(
        uvicorn.Config(
            app,  # type: ignore[arg-type]  # uvicorn's ASGI types are narrower than Starlette's
            http=_Connection,
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


async def _give_up(runtime: Runtime) -> None:
    """Say that time has passed when some request has waited as long as it may."""
    while True:
        await asyncio.sleep(TICK_S)
        give_up_at = runtime.balancer.give_up_at
        if give_up_at is not None and give_up_at <= runtime.now():
            runtime.feed(Tick())


async def _flush(log: FactLog) -> None:
    while True:
        await asyncio.sleep(FLUSH_S)
        log.flush()


def _target(engine: EngineSettings) -> Target:
    key = os.environ[engine.api_key_env] if engine.api_key_env else None
    base_url = engine.url.rstrip("/").removesuffix("/v1")
    upstream = Upstream(engine.id, base_url, key)
    return Target(upstream, engine.max_num_seqs or MAX_NUM_SEQS, engine.kv_tokens)


@contextlib.contextmanager
def _open_log(directory: str | None) -> Iterator[FactLog | None]:
    if directory is None:
        yield None
        return
    try:
        log = FactLog(Path(directory))
    except OSError as error:
        raise SetupError(f"the log directory {directory} is no use: {error.strerror}") from None
    with contextlib.closing(log):
        yield log


@contextlib.contextmanager
def _listen(host: str, port: int) -> Iterator[socket.socket]:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # With the protocol named, asyncio sets TCP_NODELAY on accepted connections; uvloop always does.
    sock = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
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


def _url(sock: socket.socket) -> str:
    host, port = sock.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
