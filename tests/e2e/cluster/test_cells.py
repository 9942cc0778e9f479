"""Gateways over two pools, each with a balancer of its own, on a real Kafka."""

import asyncio
import secrets
from collections import defaultdict
from contextlib import AsyncExitStack

import aiohttp
import pytest

from kairos.cluster import Cells
from kairos.cluster.pool import cells as cells_module
from kairos.core import SECOND
from kairos.service import running
from kairos.settings import EngineSettings, Settings
from tests.e2e.client import LIMIT_S
from tests.support.cluster.impatient import SESSION_S
from tests.support.processes import Process

pytestmark = [pytest.mark.kafka, pytest.mark.smoke]

BODY = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}]}


@pytest.fixture
async def stack():
    async with AsyncExitStack() as stack:
        yield stack


class TwoPools:
    """Engines, a file of settings that all processes share, and their balancers."""

    def __init__(self, bus, engines, directory, stack):
        self._bus, self._directory, self._stack = bus, directory, stack
        self.names = tuple(f"cell-{n}-{secrets.token_hex(4)}" for n in (1, 2))
        self.engines = dict(zip(self.names, engines, strict=True))
        self._file = directory / "cells.toml"
        tables = [
            f'[[engine]]\nurl = "{engine.url}"\npool = "{name}"\nmax_num_seqs = 4\n'
            for name, engine in self.engines.items()
        ]
        head = f'bus = "{bus}"\npools = {list(self.names)}\n'
        self._file.write_text(head + "\n".join(tables))

    async def balancer(self, name):
        options = ("--config", self._file, "--pool", name, "--port", "0")
        process = Process(
            *(self._directory, name, "balance", *map(str, options)),
            module="tests.support.cluster.impatient",
            environ={"KAIROS_TEST_SESSION_S": str(SESSION_S)},
        )
        self._stack.callback(process.kill)
        process.start()
        await process.until_it_says("this process decides")
        return process

    async def gateway(self):
        settings = Settings(
            bus=self._bus,
            pools=self.names,
            engine=tuple(
                EngineSettings(url=engine.url, pool=name, max_num_seqs=4)
                for name, engine in self.engines.items()
            ),
            port=0,
            admin_port=0,
        )
        service = await self._stack.enter_async_context(running(settings))
        await service.monitor.all_joined.wait()
        return service


async def ask(session, service, workflow, number):
    headers = {"X-Kairos-Workflow-Id": workflow, "X-Request-Id": f"{workflow}.{number}"}
    async with session.post(
        f"{service.url}/v1/chat/completions", json=BODY, headers=headers
    ) as response:
        return response.status


async def test_workflows_keep_to_their_pool_and_leave_one_that_is_away(
    kafka, engines, tmp_path, stack, monkeypatch
):
    monkeypatch.setattr(cells_module, "AWAY_US", 3 * SECOND)
    pools = TwoPools(kafka, [await engines(), await engines()], tmp_path, stack)
    _, dying = [await pools.balancer(name) for name in pools.names]
    gateways = [await pools.gateway(), await pools.gateway()]
    session = await stack.enter_async_context(aiohttp.ClientSession())

    async def round_of(count):
        for engine in pools.engines.values():
            engine.calls.clear()
        made = [ask(session, gateways[n % 2], f"w{n // 4}", n) for n in range(4 * count)]
        assert await asyncio.wait_for(asyncio.gather(*made), LIMIT_S) == [200] * len(made)
        where = defaultdict(set)
        for name, engine in pools.engines.items():
            for call in engine.calls:
                where[call.headers["x-request-id"].split(".")[0]].add(name)
        return where

    for gateway in gateways:
        cells = gateway.brain.member.cells
        assert isinstance(cells, Cells)
        assert not gateway.brain.decides
    where = await round_of(12)
    assert len(where) == 12
    assert all(len(names) == 1 for names in where.values()), "from both gateways the same"
    assert {name for names in where.values() for name in names} == set(pools.names)

    dying.kill()
    async with asyncio.timeout(LIMIT_S):
        while not all(each.brain.member.cells.is_away(pools.names[1]) for each in gateways):
            await asyncio.sleep(0.05)
    where = await round_of(12)
    assert {name for names in where.values() for name in names} == {pools.names[0]}
    async with session.get(f"{gateways[0].admin_url}/metrics") as response:
        shown = await response.text()
    assert f'kairos_cell_up{{pool="{pools.names[1]}"}} 0.0' in shown

    await pools.balancer(pools.names[1])
    async with asyncio.timeout(LIMIT_S):
        while any(each.brain.member.cells.is_away(pools.names[1]) for each in gateways):
            await asyncio.sleep(0.05)
    where = await round_of(12)
    assert {name for names in where.values() for name in names} == set(pools.names)
