"""A whole Kairos over real sockets, and engines that a test holds by hand."""

import asyncio
import logging
import socket
from contextlib import AsyncExitStack

import pytest
import uvloop
from aiohttp import web

from kairos.gateway.server import http
from kairos.host import child_process
from tests.e2e.cli.flow_runs import Runs, answering
from tests.e2e.client import LIMIT_S
from tests.e2e.engine import Engine
from tests.e2e.served import serving
from tests.support.host import forked
from tests.support.issuer import Issuer
from tests.support.simulate import standin as standins
from tests.support.workflows.runs import Executor


def pytest_asyncio_loop_factories(config, item):
    """The loop that `kairos serve` runs on; the standard one too, for tests that name it."""
    loops = {"uvloop": uvloop.new_event_loop, "asyncio": asyncio.new_event_loop}
    mark = item.get_closest_marker("asyncio")
    return loops if mark and mark.kwargs else {"uvloop": loops["uvloop"]}


@pytest.fixture
async def kairos(caplog, monkeypatch):
    """`await kairos(URL, ...)` starts one before these engines and waits until they joined."""
    monkeypatch.setattr(http, "GRACE_S", 1)
    tasks_before = asyncio.all_tasks()
    stack, started = AsyncExitStack(), []

    async def start(*urls, **given):
        started.append(await stack.enter_async_context(serving(*urls, **given)))
        return started[-1]

    async with stack:
        yield start
        for each in started:
            for wire in each._wires:
                await wire.close()
            await each.settled()
    # What was cancelled last needs a turn of the loop to be gone.
    if left := asyncio.all_tasks() - tasks_before - {asyncio.current_task()}:
        await asyncio.wait(left, timeout=LIMIT_S)
    assert not [task for task in left if not task.done()]
    # aiohttp.server is the engines' side, where errors are made on purpose.
    errors = [r for r in caplog.get_records("call") if r.levelno >= logging.ERROR]
    assert not [r for r in errors if r.name != "aiohttp.server"]


@pytest.fixture
async def engines():
    """`await engines()` starts an engine that the test holds by hand; `stop` ends it."""
    stack = AsyncExitStack()

    async def start(port=0):
        engine = Engine()
        app = web.Application(client_max_size=64 << 20)
        app.router.add_route("*", "/{path:.*}", engine.handle)
        runner = web.AppRunner(
            app, handler_cancellation=True, access_log=None, shutdown_timeout=0.01
        )
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", port).start()
        engine.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        engine.stop = runner.cleanup
        stack.push_async_callback(runner.cleanup)
        return engine

    yield start
    await stack.aclose()


@pytest.fixture
async def engine(engines):
    return await engines()


@pytest.fixture
async def served(kairos, engine):
    """A Kairos before the engine."""
    return await kairos(engine.url)


@pytest.fixture
async def standin():
    async with standins.serve(standins.StandInSettings(model="tiny")) as served:
        yield served


@pytest.fixture
def runs(tmp_path, engine):
    """Runs of declared workflows before the engine, which answers each prompt in its own way."""
    return Runs(tmp_path, answering(engine))


@pytest.fixture
def seen(monkeypatch):
    """Facts and commands of executors, in order."""
    log, handle = [], Executor.handle

    def watched(self, fact):
        commands = handle(self, fact)
        log.extend([fact, *commands])
        return commands

    monkeypatch.setattr(Executor, "handle", watched)
    return log


@pytest.fixture
async def issuer():
    """An identity provider."""
    issuer = Issuer()
    await issuer.start()
    yield issuer
    await issuer.stop()


@pytest.fixture
def forks(monkeypatch):
    """Patch this process so that starting `python -m MODULE` forks a warm process."""
    forked.prepare()
    monkeypatch.setattr(child_process, "start_child", forked.start_child)


@pytest.fixture
def unused_port():
    """Where nothing listens."""
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return sock.getsockname()[1]
