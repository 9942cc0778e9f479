"""A whole Kairos over real sockets, and engines that a test holds by hand.

All of it runs in the test's own loop, so that a test awaits the fact it needs and never sleeps.
"""

import asyncio
import json
import logging
import socket
from collections import Counter
from contextlib import AsyncExitStack, suppress
from urllib.parse import urlsplit

import aiohttp
import pytest
import uvloop
from aiohttp import web

from kairos.config import EngineSettings, Settings
from kairos.events import Arrived, Cancelled, Failed, Finished, InstanceJoined
from kairos.live import service
from kairos.sim import standin as standins

LIMIT_S = 10.0  # for anything that a test awaits


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


class Answer:
    """A whole HTTP answer. Headers that occur more than once are a list of that many values."""

    def __init__(self, status, headers, body):
        self.status, self.headers, self.body = status, headers, body

    def json(self):
        return json.loads(self.body)

    def error(self):
        """The error, having checked that it is in OpenAI's format."""
        assert self.status >= 400
        assert self.headers["x-request-id"]
        error = self.json()["error"]
        assert sorted(error) == ["code", "message", "param", "type"]
        assert "Traceback" not in error["message"]
        return error


class Wire:
    """A connection whose bytes are written by hand."""

    def __init__(self, reader, writer):
        self.reader, self._writer = reader, writer

    async def send(self, data):
        self._writer.write(data)
        await self._writer.drain()

    async def post(self, path, body, *headers, method="POST"):
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        lines = [f"{method} {path} HTTP/1.1", "Host: kairos", f"Content-Length: {len(content)}"]
        head = "\r\n".join([*lines, *headers]).encode("latin-1")
        await self.send(head + b"\r\n\r\n" + content)

    async def head(self):
        """Status and headers of the next answer, whose body is still to come."""
        async with asyncio.timeout(LIMIT_S):
            lines = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        pairs = (line.split(": ", 1) for line in lines[1:-2])
        return int(lines[0].split()[1]), {name.lower(): value for name, value in pairs}

    async def answer(self):
        status, headers = await self.head()
        async with asyncio.timeout(LIMIT_S):
            if "content-length" in headers:
                body = await self.reader.readexactly(int(headers["content-length"]))
            else:
                body = b"".join([chunk async for chunk in self.chunks()])
        return Answer(status, headers, body)

    async def chunks(self):
        while size := int(await self.reader.readuntil(b"\r\n"), 16):
            yield (await self.reader.readexactly(size + 2))[:-2]
        await self.reader.readexactly(2)

    def half_close(self):
        self._writer.write_eof()

    def leave(self):
        """Close at once, unread answers or not."""
        self._writer.transport.abort()

    async def close(self):
        self._writer.close()
        with suppress(OSError):
            await self._writer.wait_closed()


class Kairos:
    """One that serves: its facts, and clients of it."""

    def __init__(self, service, facts, session, wires):
        self.service, self.facts, self._session, self._wires = service, facts, session, wires
        self.url, self.balancer = service.url, service.runtime.balancer

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
        assert not any(map(self.service.runtime._engine.expects, arrived))  # noqa: SLF001


@pytest.fixture
async def kairos(caplog, monkeypatch):
    """`await kairos(URL, ...)` starts one before these engines and waits until they joined."""
    monkeypatch.setattr(service, "GRACE_S", 1)
    tasks_before = asyncio.all_tasks()
    stack, started = AsyncExitStack(), []

    async def start(*urls, max_num_seqs=None, kv_tokens=None, joins=None, key_env=None, **given):
        engine = tuple(
            EngineSettings(
                url=url, max_num_seqs=max_num_seqs, kv_tokens=kv_tokens, api_key_env=key_env
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
            for wire in each._wires:  # noqa: SLF001
                await wire.close()
            await each.settled()
    # What was cancelled last needs a turn of the loop to be gone.
    if left := asyncio.all_tasks() - tasks_before - {asyncio.current_task()}:
        await asyncio.wait(left, timeout=1)
    assert not [task for task in left if not task.done()]
    # aiohttp.server is the engines' side, where errors are made on purpose.
    errors = [r for r in caplog.get_records("call") if r.levelno >= logging.ERROR]
    assert not [r for r in errors if r.name != "aiohttp.server"]


class Received:
    """A call as it reached the engine."""

    def __init__(self, request, body):
        self.method, self.path, self.body = request.method, request.raw_path, body
        self.headers = {
            name.decode().lower(): value.decode() for name, value in request.raw_headers
        }


class Engine:
    """An engine that records what reaches it, and answers what and when the test wants.

    `answer` makes a response to a call, or writes one, and `probe` to what Kairos asks for itself;
    `lost` counts callers that left before the end of their answer.
    """

    def __init__(self):
        self.url = ""
        self.models = ["tiny"]
        self.calls = []
        self.probes = []
        self.lost = 0
        self.turns = asyncio.Semaphore(0)  # for answers that wait until the test releases them
        self._changed = asyncio.Event()

    async def probe(self, request):
        """A healthy engine, with no more to tell than its models."""
        if request.raw_path != "/v1/models":
            return web.Response()
        return web.json_response({"data": [{"id": model} for model in self.models]})

    async def answer(self, request):
        return web.json_response({"object": "made up", "number": len(self.calls)})

    async def when_released(self, request):
        await self.turns.acquire()
        return web.json_response({"object": "made up", "number": len(self.calls)})

    def stream(self, *parts, then=None):
        """An answer that sends one part of a stream at each release of `turns`.

        A caller counts as lost as soon as it leaves, though nothing is being written.
        """

        async def answer(request):
            response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
            await response.prepare(request)
            for part in parts:
                await self.turns.acquire()
                await response.write(part)
            if then is not None:
                await self.turns.acquire()
                then(request.transport)
            return response

        return answer

    def release(self, number=1):
        for _ in range(number):
            self.turns.release()

    async def until(self, condition):
        async with asyncio.timeout(LIMIT_S):
            while not condition():
                self._changed.clear()
                await self._changed.wait()

    async def called(self, number=1):
        """The call of that number, when it is here."""
        await self.until(lambda: len(self.calls) >= number)
        return self.calls[number - 1]

    async def handle(self, request):
        if request.method == "GET" and request.raw_path in (
            "/health", "/v1/models", "/props", "/metrics",
        ):  # fmt: skip
            self.probes.append(Received(request, b""))
            self._changed.set()
            return await self.probe(request)
        self.calls.append(Received(request, await request.read()))
        self._changed.set()
        try:
            return await self.answer(request)
        except (asyncio.CancelledError, ConnectionError):
            self.lost += 1
            self._changed.set()
            raise


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
