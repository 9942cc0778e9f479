"""A whole Kairos in the test's own loop: a test awaits the fact that it needs, and never sleeps."""

import asyncio
from collections import Counter
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import aiohttp

from kairos import service
from kairos.core import Arrived, Cancelled, Failed, Finished, InstanceJoined
from kairos.settings import EngineSettings, Settings
from tests.e2e.client import LIMIT_S, Answer, Wire

# Names that raw requests of tests give in their header Host.
NAMES = ("kairos", "k", "a", "x")
_OF_ENGINES = set(EngineSettings.__struct_fields__)


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
        return await self._ask(method, self.url + path, **options)

    async def operate(self, method, path, **options):
        """One HTTP call from an operator."""
        return await self._ask(method, f"{self.service.admin_url}/admin/{path}", **options)

    async def _ask(self, method, url, **options):
        async with (
            asyncio.timeout(LIMIT_S),
            self._session.request(method, url, **options) as response,
        ):
            return Answer(response.status, response.headers, await response.read())

    async def chat(self, headers=None, **fields):
        body = {"model": "tiny", "messages": [{"role": "user", "content": "Hello"}]} | fields
        return await self.ask("POST", "/v1/chat/completions", json=body, headers=headers)

    async def connect(self, url=None):
        """To OpenAI's API, or another port of it."""
        address = urlsplit(url or self.url)
        self._wires.append(Wire(*await asyncio.open_connection(address.hostname, address.port)))
        return self._wires[-1]

    async def post_raw(self, *request, **more):
        """Send a request on a connection of its own, which is returned."""
        wire = await self.connect()
        await wire.post(*request, **more)
        return wire

    async def settled(self):
        """Every call that arrived has ended, once, and left nothing behind."""
        ends = (Finished, Failed, Cancelled)
        await self.facts.until(lambda: len(self.facts.all(*ends)) >= len(self.facts.all(Arrived)))
        arrived = Counter(fact.request.id for fact in self.facts.all(Arrived))
        assert arrived == Counter(fact.request_id for fact in self.facts.all(*ends))
        assert self.balancer.waiting == 0
        assert len(self.balancer.ledger) == 0
        assert self.service.brain.runtime._engine._expected == {}


@asynccontextmanager
async def serving(*urls, joins=None, **given):
    """One before these engines, all of which joined, or so many. `given`: of engines, or of all.
    An engine that differs is given as its settings."""
    of_engines = {name: given.pop(name) for name in _OF_ENGINES & given.keys()}
    engine = tuple(
        each if isinstance(each, EngineSettings) else EngineSettings(url=each, **of_engines)
        for each in urls
    )
    facts = Facts()
    settings = Settings(
        engine=engine, **({"port": 0, "admin_port": 0, "allowed_hosts": NAMES} | given)
    )
    async with (
        service.running(settings, (facts,)) as live,
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session,
    ):
        await facts.until(
            lambda: len(facts.all(InstanceJoined)) >= (len(urls) if joins is None else joins)
        )
        yield Kairos(live, facts, session, [])
