"""A whole Kairos over real sockets, and engines that a test holds by hand.

All of it runs in the test's own loop, so that a test awaits the fact it needs and never sleeps.
"""

import asyncio
import logging
import socket
from collections import Counter
from contextlib import AsyncExitStack
from urllib.parse import urlsplit

import aiohttp
import pytest
import uvloop
from aiohttp import web

from kairos.config import EngineSettings, Settings
from kairos.events import Arrived, Cancelled, Failed, Finished, InstanceJoined
from kairos.live import http, service
from kairos.sim import standin as standins
from tests.e2e.client import LIMIT_S, Answer, Wire
from tests.e2e.engine import Engine


def pytest_asyncio_loop_factories(config, item):
    """The loop that `kairos serve` runs on; the standard one too, for tests that name it."""
    loops = {"uvloop": uvloop.new_event_loop, "asyncio": asyncio.new_event_loop}
    mark = item.get_closest_marker("asyncio")
    return loops if mark and mark.kwargs else {"uvloop": loops["uvloop"]}


class Facts:
    """Observes a runtime; a test waits here for what must come."""

    def __init__(self):
        self.records = []
        self._changed = asyncio.Event()

    def __call__(self, record):
        self.records.append(record)
        self._changed.set()

    def all(self, *kinds):
        return [record.event for record in self.records if isinstance(record.event, kinds)]

    async def until(self, condition):
        async with asyncio.timeout(LIMIT_S):
            while not condition():
                self._changed.clear()
                await self._changed.wait()

    async def seen(self, kind, number=1):
        """The first fact of the kind, or the one of that number."""
        await self.until(lambda: len(self.all(kind)) >= number)
        return self.all(kind)[number - 1]


class Kairos:
    """One that serves: its facts, and clients of it."""

    def __init__(self, service, facts, session, wires):
        self.service, self.facts, self._session, self._wires = service, facts, session, wires
        self.url, self.balancer = service.url, service.brain.balancer

    async def ask(self, method, path, **options):
        """One HTTP call from an ordinary client."""
        async with (
            asyncio.timeout(LIMIT_S),
            self._session.request(method, self.url + path, **options) as response,
        ):
            return Answer(response.status, response.headers, await response.read())

    async def chat(self, headers=None, **fields):
        body = {"model": "tiny", "messages": [{"role": "user", "content": "Hello"}]} | fields
        return await self.ask("POST", "/v1/chat/completions", json=body, headers=headers)

    async def connect(self):
        address = urlsplit(self.url)
        self._wires.append(Wire(*await asyncio.open_connection(address.hostname, address.port)))
        return self._wires[-1]

    async def settled(self):
        """Every call that arrived has ended, once, and left nothing behind."""
        ends = (Finished, Failed, Cancelled)
        await self.facts.until(lambda: len(self.facts.all(*ends)) >= len(self.facts.all(Arrived)))
        arrived = Counter(fact.request.id for fact in self.facts.all(Arrived))
        assert arrived == Counter(fact.request_id for fact in self.facts.all(*ends))
        assert self.balancer.waiting == 0
        assert len(self.balancer.ledger) == 0
        assert self.service.brain.runtime._engine._expected == {}


@pytest.fixture
async def kairos(caplog, monkeypatch):
    """`await kairos(URL, ...)` starts one before these engines and waits until they joined."""
    monkeypatch.setattr(http, "GRACE_S", 1)
    tasks_before = asyncio.all_tasks()
    stack, started = AsyncExitStack(), []

    async def start(
        *urls,
        max_num_seqs=None,
        kv_tokens=None,
        priority=False,
        joins=None,
        key_env=None,
        **given,
    ):
        engine = tuple(
            EngineSettings(
                url=url,
                max_num_seqs=max_num_seqs,
                kv_tokens=kv_tokens,
                priority=priority,
                api_key_env=key_env,
            )
            for url in urls
        )
        facts, wires = Facts(), []
        settings = Settings(engine=engine, **({"port": 0, "admin_port": 0} | given))
        live = await stack.enter_async_context(service.running(settings, (facts,)))
        session = await stack.enter_async_context(
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
        )
        await facts.until(
            lambda: len(facts.all(InstanceJoined)) >= (len(urls) if joins is None else joins)
        )
        started.append(Kairos(live, facts, session, wires))
        return started[-1]

    async with stack:
        yield start
        for each in started:
            for wire in each._wires:
                await wire.close()
            await each.settled()
    # What was cancelled last needs a turn of the loop to be gone.
    if left := asyncio.all_tasks() - tasks_before - {asyncio.current_task()}:
        await asyncio.wait(left, timeout=1)
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
async def standin():
    async with standins.serve(standins.Settings(model="tiny")) as served:
        yield served


@pytest.fixture
def unused_port():
    """Where nothing listens."""
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return sock.getsockname()[1]
