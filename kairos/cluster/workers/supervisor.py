"""`kairos serve --workers N`: binds the ports, starts the processes, and restarts dead ones.

The supervisor holds what must outlive each process: the listening sockets, so that no connection is
refused during a restart, and the decider's journal.
"""

import asyncio
import contextlib
import logging
import shutil
import signal
import socket
import tempfile
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

import msgspec

from kairos.cluster.local.local_control import ENTITLING
from kairos.cluster.local.reload import Reload
from kairos.cluster.workers import child, journal
from kairos.cluster.workers.forked import ForkedProcess, fork
from kairos.cluster.workers.link import FrameLink
from kairos.cluster.workers.messages import ASKED, FACTS, READY, Changed, Setup
from kairos.core import SetupError
from kairos.gateway import GRACE_S, TLS_SETTINGS, listening_socket, url_of
from kairos.observe import AuditLog, open_audit_log
from kairos.settings import Settings

logger = logging.getLogger(__name__)

READY_S = 60.0
DEATHS = 5  # in a row, each soon after its start: then restarts will not help
_SOON_S = 10.0
_MARGIN_S = 5.0  # beyond GRACE_S, for a child that is told to stop
_AGAIN_S = 0.5  # delay of a restart, times the number of preceding deaths
_BACKLOG = 2048
# Settings that children apply when they are reloaded; the others need a restart.
_CHANGING = (
    *("engine", "key", "keys_path", "max_body_bytes", "max_held_bytes", "policy"),
    *ENTITLING,
)

_encode = msgspec.msgpack.Encoder().encode


class Child:
    def __init__(self, setup: Setup) -> None:
        self.name = setup.name
        self.pid: int | None = None
        self.ready = asyncio.Event()
        self._setup = setup
        self._process: ForkedProcess | None = None
        self._link: FrameLink | None = None
        self._stops = False

    async def keep(self) -> None:
        """Start the process, and restart it when it dies, until cancelled.

        Raises:
            SetupError: The process dies repeatedly.
        """
        deaths, clock = 0, asyncio.get_running_loop().time
        while True:
            started_at = clock()
            status = await self._once()
            if self._stops:
                return
            deaths = deaths + 1 if clock() - started_at < _SOON_S else 1
            how = f"signal {-status}" if status < 0 else f"status {status}"
            if deaths >= DEATHS or (status == 1 and not self.ready.is_set()):
                raise SetupError(f"the {self.name} ended ({how}); what it logged above says why")
            logger.warning("the %s ended (%s); restarting it", self.name, how)
            await asyncio.sleep(_AGAIN_S * (deaths - 1))

    def change(self, settings: Settings) -> None:
        self._setup = msgspec.structs.replace(self._setup, settings=settings)
        if self._link is not None:
            self._link.send(_encode(Changed(settings)))

    async def stop(self, limit_s: float) -> None:
        """Stop the process by SIGTERM or, after the limit, by SIGKILL."""
        self._stops, process = True, self._process
        if process is None or process.returncode is not None:
            return
        process.send_signal(signal.SIGTERM)
        try:
            await asyncio.wait_for(process.wait(), limit_s)
        except TimeoutError:
            logger.warning("the %s does not stop; killing it", self.name)
            process.kill()
            await process.wait()

    async def _once(self) -> int:
        ours, theirs = socket.socketpair()
        journal_files = self._setup.journal or ()
        files = (theirs.fileno(), *self._setup.sockets.values(), *journal_files)
        with contextlib.closing(theirs):
            run = partial(child.main, theirs.fileno())
            process = self._process = fork(run, f"kairos {self.name}", files)
        self.pid = process.pid
        link = self._link = FrameLink(self._read, lambda _: None)
        await asyncio.get_running_loop().create_connection(lambda: link, sock=ours)
        link.send(_encode(self._setup))
        try:
            return await process.wait()
        finally:
            self._link = None
            await link.close(0)

    def _read(self, _: FrameLink, payload: bytes) -> None:
        if payload == READY:
            self.ready.set()


class Supervisor:
    def __init__(
        self,
        settings: Settings,
        children: Mapping[str, Child],
        url: str,
        admin_url: str,
        *,
        audit: AuditLog | None,
    ) -> None:
        self.children = children
        self.url = url
        self.admin_url = admin_url
        self._settings = settings
        self._changing = (*_CHANGING, *(TLS_SETTINGS if settings.tls_certificate else ()))
        # All children are told at once, which `Reload` does for `engine` in any case.
        changes = dict.fromkeys(self._changing, lambda _: None)
        self.reload = Reload(settings, changes | {"engine": self._change}, audit)

    def _change(self, told: Settings) -> None:
        changed = {name: getattr(told, name) for name in self._changing}
        self._settings = msgspec.structs.replace(self._settings, **changed)
        for each in self.children.values():
            each.change(self._settings)
        if not told.asks_for_keys:
            logger.warning("no API keys are configured: anyone who reaches it may call")


@contextlib.asynccontextmanager
async def supervised_workers(settings: Settings) -> AsyncIterator[Supervisor]:
    """Run workers and a decider until the block ends; then running calls may finish.

    Raises:
        SetupError: A port is taken, or a process cannot start.
    """
    settings = msgspec.structs.replace(settings, kafka={})  # secrets that no child needs
    child.prepare(settings)
    with (
        _private_directory() as directory,
        _listening(settings) as clients,
        listening_socket(settings.admin_host, settings.admin_port) as operators,
        _local(directory / FACTS) as facts,
        _local(directory / ASKED) as asked,
        open_audit_log(settings.audit_log) as audit,
    ):
        sockets = {"facts": facts, "asked": asked, "operators": operators}
        decider = Child(_setup("decider", settings, directory, sockets, journal.create()))
        workers = [
            Child(_setup(f"worker {number}", settings, directory, {"clients": sock}))
            for number, sock in enumerate(clients, start=1)
        ]
        children = {each.name: each for each in (decider, *workers)}
        has_tls = settings.tls_certificate is not None
        urls = (url_of(each, has_tls=has_tls) for each in (clients[0], operators))
        supervisor = Supervisor(settings, children, *urls, audit=audit)
        async with _kept(decider, workers):
            await _until_ready(children.values())
            try:
                yield supervisor
            finally:
                for sock in clients:  # from here on nobody new is let in
                    sock.close()


@contextlib.asynccontextmanager
async def _kept(decider: Child, workers: Sequence[Child]) -> AsyncIterator[None]:
    """Keep the processes running in the block.

    At its end workers finish their calls, and the decider runs until then.
    """
    try:
        async with asyncio.TaskGroup() as tasks:
            for each in (decider, *workers):
                tasks.create_task(each.keep())
            try:
                yield
            finally:
                limit_s = GRACE_S + _MARGIN_S
                await asyncio.gather(*(worker.stop(limit_s) for worker in workers))
                await decider.stop(limit_s)
    except BaseExceptionGroup as group:
        if len(group.exceptions) == 1:
            raise group.exceptions[0] from None
        raise


async def _until_ready(children: Iterable[Child]) -> None:
    for each in children:
        try:
            async with asyncio.timeout(READY_S):
                await each.ready.wait()
        except TimeoutError:
            raise SetupError(f"the {each.name} does not start within {READY_S:g} s") from None


def _setup(
    name: str,
    settings: Settings,
    directory: Path,
    sockets: Mapping[str, socket.socket],
    files: tuple[int, int] | None = None,
) -> Setup:
    return Setup(
        name=name,
        settings=settings,
        directory=str(directory),
        sockets={what: sock.fileno() for what, sock in sockets.items()},
        journal=files,
    )


@contextlib.contextmanager
def _private_directory() -> Iterator[Path]:
    """Yield a temporary directory that only this user can enter."""
    directory = tempfile.mkdtemp(prefix="kairos-")
    try:
        yield Path(directory)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@contextlib.contextmanager
def _listening(settings: Settings) -> Iterator[list[socket.socket]]:
    """Yield a socket for each worker, all on one port: the kernel spreads connections evenly.

    With one socket for all, the worker that wakes first would take all waiting connections.
    """
    with contextlib.ExitStack() as stack:
        # Alone at first: another Kairos of the same user could share the port without an error.
        with listening_socket(settings.host, settings.port):
            pass
        port, sockets = settings.port, []
        for _ in range(settings.workers):
            sock = stack.enter_context(listening_socket(settings.host, port, shared=True))
            port = sock.getsockname()[1]
            sockets.append(sock)
        yield sockets


@contextlib.contextmanager
def _local(path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.bind(str(path))
        sock.listen(_BACKLOG)
        yield sock
