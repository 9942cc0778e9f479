"""Kairos before real vLLM: the API as clients use it, limits, prefixes, and how vLLM fails."""

import asyncio
import os
import re
import signal
from types import SimpleNamespace

import aiohttp
import anthropic
import openai
import pytest

from kairos.core import Cancelled, Failed, Finished, InstanceLeft, InstanceStatus
from tests.support.cli.command import start_engines
from tests.support.engines.probes import probe_every
from tests.support.processes import Process
from tests.support.vllm import descendants, named, needs_vllm, until_gone

pytestmark = pytest.mark.vllm

BLOCK = 32
MODEL = "tiny"
HELLO = [{"role": "user", "content": "Hello"}]
FULL = {"ignore_eos": True}  # to its max_tokens, whatever it says


@pytest.fixture
async def client():
    """`client(kairos)`, or of an engine's URL: OpenAI's own client, which tries nothing twice."""
    made = []

    def make(served):
        url = f"{getattr(served, 'url', served)}/v1"
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
    # One block of the 1,024 is vLLM's own.
    assert [each.kv_tokens for each in instances] == [1023 * BLOCK] * len(vllm)
    assert [each.block_size for each in instances] == [BLOCK] * len(vllm)
    assert all(each.prefix_caching for each in instances)
    # The first time, vLLM may take longer to say how it was started than is waited for.
    await serving.facts.until(
        lambda: all(each.priority for each in serving.balancer.ledger.instances.values())
    )
    # vLLM's own choice on a CPU; nobody else says less than 256.
    assert {i.max_num_seqs for i in serving.balancer.ledger.instances.values()} == {128}


@pytest.mark.smoke
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


@pytest.mark.smoke
async def test_messages_are_answered_whole_and_streamed_and_counted(kairos, vllm):
    serving = await kairos(vllm[0])
    asked = {"model": MODEL, "messages": HELLO, "max_tokens": 20, "system": "Be brief."}
    async with anthropic.AsyncAnthropic(
        base_url=serving.url, api_key="none", max_retries=0, timeout=60
    ) as client:
        whole = await client.messages.create(**asked)
        async with client.messages.stream(**asked) as stream:
            streamed = await stream.get_final_message()
        counted = await client.messages.count_tokens(
            **{name: value for name, value in asked.items() if name != "max_tokens"}
        )
        with pytest.raises(anthropic.BadRequestError):
            await client.messages.create(**asked | {"max_tokens": 10**6})
    await serving.facts.seen(Finished, 2)
    for said, fact in zip((whole, streamed), serving.facts.all(Finished), strict=True):
        cached = said.usage.cache_read_input_tokens or 0
        assert fact.prompt_tokens == said.usage.input_tokens + cached == counted.input_tokens
        assert fact.completion_tokens == said.usage.output_tokens > 0


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


@pytest.fixture
def often(monkeypatch):
    probe_every(monkeypatch, 0.1)


@pytest.mark.usefixtures("often")
async def test_what_vllm_says_of_its_load_is_told(kairos, client, vllm):
    serving = await kairos(vllm[0])
    chat, number, length = client(serving), 6, 1200

    async def ask(n):
        messages = [{"role": "user", "content": f"{n} {vllm[0]} one two three four " * 20}]
        await chat.create(model=MODEL, messages=messages, max_tokens=length, extra_body=FULL)

    idle = await serving.facts.seen(InstanceStatus)
    assert (idle.kv_used, idle.running, idle.waiting, idle.waiting_for_room) == (0, 0, 0, 0)
    await asyncio.gather(*map(ask, range(number)))
    told = serving.facts.all(InstanceStatus)
    await serving.facts.until(lambda: serving.facts.all(InstanceStatus)[-1].running == 0)

    assert max(each.running for each in told) == number
    finished = serving.facts.all(Finished)
    tokens = sum(fact.prompt_tokens + length for fact in finished)
    # All had run at once; their blocks are not all full, nor was the last look at the last token.
    most = max(each.kv_used for each in told) * 1023 * BLOCK
    assert 0.6 * tokens < most < tokens + number * BLOCK
    last = serving.facts.all(InstanceStatus)[-1]
    assert last.kv_used == 0
    assert last.queried_tokens - idle.queried_tokens == sum(each.prompt_tokens for each in finished)
    assert last.cached_tokens - idle.cached_tokens == sum(each.cached_tokens for each in finished)
    assert last.preemptions == idle.preemptions


@pytest.mark.usefixtures("often")
async def test_memory_that_is_short_shows_as_waiting_at_once_and_as_preemptions_later(
    kairos, client
):
    needs_vllm()
    short = ["--max-model-len", "1024", "--num-gpu-blocks-override", "33"]
    async with start_engines("vllm", 1, options=short) as urls:
        serving = await kairos(*urls, priority=True)
        [instance] = serving.balancer.ledger.instances.values()
        assert instance.kv_tokens == 32 * BLOCK
        # It does not run in development mode, so these are as the operator says.
        assert (instance.priority, instance.max_num_seqs) == (True, 256)

        direct = client(SimpleNamespace(url=urls[0]))  # Kairos would not send so many at once
        asked = {"model": MODEL, "max_tokens": 400, "extra_body": FULL, "timeout": 200}
        one = HELLO[0]
        await asyncio.gather(
            *(direct.create(messages=[one | {"content": f"{n} Hello"}], **asked) for n in range(6))
        )
        await serving.facts.until(lambda: serving.facts.all(InstanceStatus)[-1].running == 0)
    told = serving.facts.all(InstanceStatus)
    short_of_room = [n for n, each in enumerate(told) if each.waiting_for_room]
    preempted = [n for n, each in enumerate(told) if each.preemptions]
    assert max(each.kv_used for each in told) > 0.8
    assert short_of_room[0] < preempted[0]
    assert told[short_of_room[0]].waiting == told[short_of_room[0]].waiting_for_room


async def test_a_callers_own_priority_does_not_reach_vllm(kairos, client, vllm):
    asked = {"model": MODEL, "messages": HELLO, "max_tokens": 1}
    asked["extra_body"] = {"priority": "high"}  # vLLM refuses it
    with pytest.raises(openai.BadRequestError, match="priority"):
        await client(vllm[0]).create(**asked)
    answer = await client(await kairos(*vllm)).create(**asked)
    assert answer.usage.completion_tokens == 1


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
    async with asyncio.timeout(60):
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
        async with asyncio.timeout(60):
            assert "vllm engine 1 has ended: error: vLLM ended with" in await failed.get()
    await until_gone(processes)


async def test_no_process_is_left_after_sigkill_of_the_command(tmp_path):
    needs_vllm()
    with Process(
        tmp_path, "vllm", "--count", 1, "--port", 0, module="scripts.vllm_engines"
    ) as process:
        async with asyncio.timeout(120):
            while not named("VLLM::Worker", processes := descendants(process.pid)):
                await asyncio.sleep(0.05)
        assert len(processes) >= 4  # ours, the API's, the engine's, the worker's
        os.kill(process.pid, signal.SIGKILL)
        await until_gone(processes)
