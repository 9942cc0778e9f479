"""The proxy before a real vLLM: its answers pass as they are, and are hurt where it is said."""

import asyncio

import aiohttp
import pytest

from tests.faults.faults import Cut, Stall, Status, Stop
from tests.faults.proxy import Proxy

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600)]

LIMIT_S = 120.0  # its first answer takes a while
TOKENS = 300


@pytest.fixture
async def asked(vllm):
    """`await asked(FAULT)`: a streamed call to vLLM that this is done to, and what comes of it."""
    async with Proxy(vllm[0]) as proxy, aiohttp.ClientSession() as session:
        async with session.get(f"{proxy.url}/v1/models") as response:
            model = (await response.json())["data"][0]["id"]

        async def ask(fault=None, limit_s=LIMIT_S):
            if fault is not None:
                proxy.hurt(fault)
            content = b""
            try:
                async with (
                    asyncio.timeout(limit_s),
                    session.post(f"{proxy.url}/v1/chat/completions", json=body(model)) as response,
                ):
                    async for piece in response.content.iter_any():
                        content += piece
            except (aiohttp.ClientError, TimeoutError) as error:
                return type(error), content
            return response.status, content

        ask.proxy, ask.session = proxy, session
        yield ask


def body(model):
    messages = [{"role": "user", "content": "Hello"}]
    limits = {"max_tokens": TOKENS, "ignore_eos": True}
    return {"model": model, "messages": messages, "stream": True} | limits


async def running(asked):
    async with asked.session.get(f"{asked.proxy.url}/metrics") as response:
        lines = (await response.text()).splitlines()
    return sum(float(x.split()[-1]) for x in lines if x.startswith("vllm:num_requests_running{"))


async def test_a_real_answer_passes_and_is_hurt_where_it_is_said(asked):
    status, whole = await asked()
    assert status == 200
    assert whole.endswith(b"data: [DONE]\n\n")

    error, cut = await asked(Cut(after_events=5))
    assert (error, cut.count(b"\n\n")) == (aiohttp.ClientPayloadError, 5)
    status, stopped = await asked(Stop(after_events=5))
    assert status == 200
    assert 5 <= stopped.count(b"\n\n") < whole.count(b"\n\n")
    assert (await asked(Status(503)))[0] == 503
    assert (await asked())[0] == 200


async def test_a_real_engine_stops_work_on_a_stalled_call_when_its_client_leaves(asked):
    error, stalled = await asked(Stall(after_events=2), limit_s=5)
    assert (error, stalled.count(b"\n\n")) == (TimeoutError, 2)
    async with asyncio.timeout(LIMIT_S):
        while await running(asked):
            await asyncio.sleep(0.1)
