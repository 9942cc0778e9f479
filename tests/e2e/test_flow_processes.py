"""Flows that several processes serve, some of which die."""

import asyncio
import os
import signal
from contextlib import asynccontextmanager

import aiohttp
import openai

from tests.e2e.batch_files import client_of
from tests.e2e.flows import REPORTS, answers
from tests.e2e.test_workers import children
from tests.support.processes import READY_S, Process

ASKED = {"model": "flow/reports", "messages": [{"role": "user", "content": "x"}]}


def settings(directory, engine_url, **given):
    told = {"port": 0, "admin_port": 0, **given}
    lines = [f"{name} = {value}" for name, value in told.items()]
    lines += ["[[engine]]", f'url = "{engine_url}"']
    lines += ["[flows]", f'directory = "{directory / "flows"}"']
    path = directory / "kairos.toml"
    path.write_text("\n".join(lines))
    return path


@asynccontextmanager
async def serving(directory, engine, name="serve", **given):
    """A `kairos serve` whose engine has joined, and its URL."""
    path = settings(directory, engine.url, **given)
    with Process(directory, name, "serve", "--config", path) as serve:
        await serve.until_it_says("serving on")
        url = serve.said.split("serving on ")[1].split("/v1")[0]
        async with asyncio.timeout(READY_S), aiohttp.ClientSession() as session:
            while (await session.get(f"{url}/health")).status != 200:
                await asyncio.sleep(0.05)
        yield serve, url


async def put(url):
    headers = {"content-type": "application/yaml"}
    async with (
        aiohttp.ClientSession() as session,
        session.put(f"{url}/v1/flows/reports", data=REPORTS, headers=headers) as answer,
    ):
        assert answer.status == 200, await answer.text()


async def asked(url):
    """On a connection of its own."""
    async with client_of(url) as client:
        answer = await client.chat.completions.create(**ASKED)
        return answer.choices[0].message.content


async def test_a_flow_that_one_worker_was_told_every_worker_serves(engine, tmp_path):
    answers(engine)
    async with serving(tmp_path, engine, workers=2) as (_, url):
        await put(url)
        texts = await asyncio.gather(*(asked(url) for _ in range(16)))
        assert len(set(texts)) == 1
        async with client_of(url) as client:
            models = [model.id for model in (await client.models.list()).data]
        assert models == ["tiny", "flow/reports"]


async def test_a_worker_that_is_killed_takes_its_invocations_with_it_and_nothing_else(
    engine, tmp_path
):
    answers(engine)
    async with serving(tmp_path, engine, workers=1) as (serve, url):
        await put(url)
        answering, engine.answer = engine.answer, engine.when_released
        under_way = asyncio.create_task(asked(url))
        await engine.called()
        _, worker = children(serve.pid)
        os.kill(worker, signal.SIGKILL)
        (broken,) = await asyncio.gather(under_way, return_exceptions=True)
        assert isinstance(broken, openai.APIConnectionError)
        await engine.until(lambda: engine.lost == 1)

        engine.answer = answering
        async with asyncio.timeout(READY_S):
            assert "Judge" in await asked(url)


async def test_flows_outlive_kill_9_of_the_gateway(engine, tmp_path):
    answers(engine)
    async with serving(tmp_path, engine) as (serve, url):
        await put(url)
        serve.kill()
    async with serving(tmp_path, engine, "again") as (_, url):
        assert "Judge" in await asked(url)
