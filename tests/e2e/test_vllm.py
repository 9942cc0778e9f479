"""Kairos before real vLLM: the API as clients use it, limits, prefixes, and how vLLM fails."""

import asyncio
import os
import re
import signal
from contextlib import suppress
from pathlib import Path

import aiohttp
import openai
import pytest

from kairos.demo.engines import start_engines
from kairos.events import Cancelled, Failed, Finished, InstanceLeft
from tests.processes import Process
from tests.vllm import descendants, needs_vllm, until_gone

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(300)]

BLOCK = 32
MODEL = "tiny"
HELLO = [{"role": "user", "content": "Hello"}]
FULL = {"ignore_eos": True}  # to its max_tokens, whatever it says


@pytest.fixture
async def client():
    """`client(kairos)`: OpenAI's own client of it, which tries nothing twice."""
    made = []

    def make(kairos):
        url = f"{kairos.url}/v1"
        made.append(openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0, timeout=60))
        return made[-1].chat.completions

    yield make
    for each in made:
        await each.close()


async def metric(url, name):
    async with aiohttp.ClientSession() as session, session.get(f"{url}/metrics") as response:
        found = re.search(rf"^{re.escape(name)}{{[^}}]*}} (\S+)$", await response.text(), re.M)
    return float(found[1])


async def test_what_vllm_serves_and_holds_is_discovered(kairos, vllm):
    serving = await kairos(*vllm)
    instances = serving.balancer.ledger.instances.values()
    assert [each.models for each in instances] == [(MODEL,)] * len(vllm)
    assert [each.kv_tokens for each in instances] == [1024 * BLOCK] * len(vllm)


async def test_a_chat_is_answered_whole_and_streamed(kairos, client, vllm):
    serving = await kairos(*vllm)
    chat = client(serving)
    asked = {"model": MODEL, "messages": HELLO, "max_tokens": 20, "extra_body": FULL}
    whole = await chat.create(**asked)
    chunks = [chunk async for chunk in await chat.create(**asked, stream=True, temperature=0)]

    assert whole.usage.completion_tokens == 20
    assert whole.choices[0].finish_reason == chunks[-1].choices[0].finish_reason == "length"
    assert all(chunk.usage is None for chunk in chunks)  # as nobody asked for it
    await serving.facts.seen(Finished, 2)
    for fact in serving.facts.all(Finished):
        assert (fact.prompt_tokens, fact.completion_tokens) == (whole.usage.prompt_tokens, 20)


async def test_the_part_of_a_prompt_that_was_in_the_cache_is_known(kairos, client, vllm):
    serving = await kairos(vllm[0])
    messages = [{"role": "user", "content": "one two three four " * 40 + vllm[0]}]
    for _ in range(2):
        await client(serving).create(model=MODEL, messages=messages, max_tokens=1)
    await serving.facts.seen(Finished, 2)
    first, second = serving.facts.all(Finished)
    assert first.cached_tokens == 0
    # Whole blocks, and never all of a prompt: its last token is computed for the answer's first.
    assert second.cached_tokens == (second.prompt_tokens - 1) // BLOCK * BLOCK > 0


async def test_a_priority_reaches_vllm(kairos, client, vllm):
    chat = client(await kairos(*vllm))
    asked = {"model": MODEL, "messages": HELLO, "max_tokens": 1}
    assert (await chat.create(**asked, extra_body={"priority": 5})).usage.completion_tokens == 1
    with pytest.raises(openai.BadRequestError, match="priority"):
        await chat.create(**asked, extra_body={"priority": "high"})


async def test_what_vllm_refuses_is_told_as_it_said_it(kairos, client, vllm):
    serving = await kairos(vllm[0])
    with pytest.raises(openai.BadRequestError, match="4096"):
        await client(serving).create(model=MODEL, messages=HELLO, max_tokens=5000)
    assert (await serving.facts.seen(Failed)).reason == "engine answered 400"


async def test_a_client_that_leaves_ends_its_work_in_vllm(kairos, client, vllm):
    serving = await kairos(vllm[0])
    stream = await client(serving).create(
        model=MODEL, messages=HELLO, max_tokens=4000, stream=True, extra_body=FULL
    )
    await anext(aiter(stream))
    assert await metric(vllm[0], "vllm:num_requests_running") == 1
    await stream.close()
    await serving.facts.seen(Cancelled)
    async with asyncio.timeout(20):
        while await metric(vllm[0], "vllm:num_requests_running"):
            await asyncio.sleep(0.05)


async def test_vllm_that_dies_amid_a_stream_fails_the_call_and_is_used_no_more(kairos, client):
    needs_vllm()
    failed, others = asyncio.Queue(), descendants(os.getpid())
    async with start_engines("vllm", 1, on_failure=failed.put_nowait) as urls:
        serving = await kairos(*urls)
        processes = descendants(os.getpid()) - others
        stream = await client(serving).create(
            model=MODEL, messages=HELLO, max_tokens=4000, stream=True, extra_body=FULL
        )
        await anext(aiter(stream))
        os.kill(named("VLLM::EngineCore", processes), signal.SIGKILL)
        with pytest.raises(openai.APIError):
            async for _ in stream:
                pass
        await serving.facts.seen(Failed)
        await serving.facts.seen(InstanceLeft)
        async with asyncio.timeout(20):
            assert "vllm engine 1 has ended: error: vLLM ended with" in await failed.get()
    await until_gone(processes)


def named(name, pids):
    """The one among them that calls itself so, if any does yet."""
    for pid in pids:
        with suppress(OSError):
            if Path(f"/proc/{pid}/cmdline").read_text().strip("\0") == name:
                return pid
    return None


async def test_no_process_is_left_after_sigkill_of_the_command(tmp_path):
    needs_vllm()
    with Process(tmp_path, "vllm", "--count", 1, "--port", 0, module="kairos.demo.vllm") as process:
        async with asyncio.timeout(120):
            while not named("VLLM::Worker", processes := descendants(process.pid)):
                await asyncio.sleep(0.05)
        assert len(processes) >= 4  # ours, the API's, the engine's, the worker's
        os.kill(process.pid, signal.SIGKILL)
        await until_gone(processes)
