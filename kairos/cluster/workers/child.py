"""Main function of the supervisor's children.

Each has a socket to the supervisor, which sends its setup and, later, changed settings. The socket
closes when the supervisor dies; the child stops then, too, so that no process is left over.
"""

import asyncio
import contextlib
import signal
import socket
import sys

import msgspec
import uvloop

from kairos.cluster.workers.deciding import deciding
from kairos.cluster.workers.link import FrameLink
from kairos.cluster.workers.messages import READY, Changed, Setup
from kairos.cluster.workers.working import Change, working
from kairos.core import KairosError
from kairos.host import allow_many_connections, collect_less_often, switch_threads_often
from kairos.settings import Settings

_told = msgspec.msgpack.Decoder(Setup | Changed)


class _Child:
    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.stop = asyncio.Event()
        self.setup: asyncio.Future[Setup] = loop.create_future()
        self.change: Change | None = None
        loop.add_signal_handler(signal.SIGTERM, self.end)

    def read(self, _: FrameLink, payload: bytes) -> None:
        told = _told.decode(payload)
        if isinstance(told, Setup):
            self.setup.set_result(told)
        elif self.change is not None:
            self.change(told.settings)

    def end(self, _: FrameLink | None = None) -> None:
        self.stop.set()
        self.setup.cancel()


async def _run(control: socket.socket) -> None:
    child = _Child()
    link = FrameLink(child.read, child.end)
    await asyncio.get_running_loop().create_connection(lambda: link, sock=control)
    setup = await child.setup
    role = working if setup.journal is None else deciding
    async with role(setup) as child.change:
        collect_less_often()
        switch_threads_often()
        allow_many_connections()
        link.send(READY)
        await child.stop.wait()


def prepare(settings: Settings) -> None:
    """Import the optional modules that children will need, so that they are shared."""
    if settings.batches is not None:
        from kairos.batches import BatchesOn  # noqa: F401
    if settings.flows is not None:
        from kairos.workflows import OpenFlows  # noqa: F401
    if settings.oidc is not None:
        from kairos.gateway import SignedTokens  # noqa: F401


def main(file: int) -> int:
    """Run a child, whose socket to the supervisor has this number; return its exit status."""
    control = socket.socket(fileno=file)
    try:
        with (
            asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
            contextlib.suppress(asyncio.CancelledError),  # stopped before the setup came
        ):
            runner.run(_run(control))
    except KairosError as error:
        sys.stderr.write(f"kairos: {error}\n")
        return 1
    return 0
