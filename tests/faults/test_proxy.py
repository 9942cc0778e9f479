"""The proxy itself, before the stand-in: each fault does what it says, to whom it was meant for."""

import asyncio
import json
from contextlib import suppress

import aiohttp
import pytest

from tests.faults.faults import Cut, Stall, Status
from tests.faults.proxy import Proxy
from tests.support.simulate import standin as standins
from tests.support.simulate.standin import Timing

LIMIT_S = 60
TOKENS = 6
CHAT = "/v1/chat/completions"


@pytest.fixture
async def standin():
    async with standins.serve() as served:
        yield served


@pytest.fixture
async def proxy(standin):
    async with Proxy(standin.url, seed=3) as proxy:
        yield proxy
    code = {task.get_coro().cr_code.co_filename for task in asyncio.all_tasks()}
    assert not [each for each in code if each.endswith(("/proxy.py", "/wire.py"))]


@pytest.fixture
async def session():
    async with aiohttp.ClientSession() as session, asyncio.timeout(LIMIT_S):
        yield session


def body(**fields):
    messages = [{"role": "user", "content": "Hello"}]
    return {"model": "standin", "messages": messages, "max_tokens": TOKENS} | fields


async def chat(session, proxy, **fields):
    """Status, and all bytes of the answer, of one that is whole."""
    async with session.post(proxy.url + CHAT, json=body(**fields)) as response:
        return response.status, await response.read()


async def received(session, proxy, **fields):
    """What comes of an answer that breaks off: its status, None where it never began."""
    status, content = None, b""
    with suppress(aiohttp.ClientError):
        async with session.post(proxy.url + CHAT, json=body(stream=True, **fields)) as response:
            status = response.status
            async for piece in response.content.iter_any():
                content += piece
    return status, content


async def test_what_it_does_not_hurt_it_passes_on_as_it_is(session, standin, proxy):
    straight = [await chat(session, standin, stream=stream, seed=1) for stream in (True, False)]
    through = [await chat(session, proxy, stream=stream, seed=1) for stream in (True, False)]

    assert [status for status, _ in through] == [200, 200]
    assert [texts(content) for _, content in through] == [texts(each) for _, each in straight]
    assert proxy.hurts == {}


def texts(content):
    """The words of an answer, whole or streamed; its ids differ from call to call."""
    lines = content.removeprefix(b"data: ").split(b"\n\ndata: ")
    choices = [json.loads(line)["choices"][0] for line in lines if line.startswith(b"{")]
    return [(each.get("message") or each["delta"])["content"] for each in choices]


async def test_a_fault_is_for_those_that_it_is_meant_for_until_it_is_healed(session, proxy):
    rule = proxy.hurt(Status(500), times=None, when=lambda request: request.path == "/health")
    kept = proxy.hurt(Status(501), times=None, when=lambda request: request.path == "/metrics")

    async def statuses():
        return [
            (await session.get(proxy.url + path)).status
            for path in ("/health", "/metrics", "/v1/models")
        ]

    assert await statuses() == [500, 501, 200]
    proxy.heal(rule)
    assert await statuses() == [200, 501, 200]
    assert proxy._rules == [kept]
    proxy.heal()
    assert await statuses() == [200, 200, 200]


@pytest.mark.parametrize("retry_after_s", [None, 7])
async def test_a_status_is_answered_with_an_error_in_its_format(session, proxy, retry_after_s):
    proxy.hurt(Status(503, retry_after_s))
    async with session.post(proxy.url + CHAT, json=body()) as response:
        assert response.status == 503
        told = response.headers.get("Retry-After")
        assert told == (None if retry_after_s is None else str(retry_after_s))
        assert (await response.json())["error"]["code"] == 503


@pytest.mark.parametrize("count", [1, 3])
async def test_a_connection_is_cut_after_so_many_events(session, proxy, count):
    proxy.hurt(Cut(after_events=count))
    status, content = await received(session, proxy)
    assert status == 200
    assert content.count(b"\n\n") == count
    assert content.endswith(b"\n\n")


async def test_a_stalled_call_ends_for_the_engine_when_its_client_leaves(session, proxy, standin):
    proxy.hurt(Stall(after_events=2))
    standin.batch._timing = Timing(step_s=0.05)
    async with session.post(proxy.url + CHAT, json=body(stream=True, max_tokens=500)) as response:
        content = b""
        while content.count(b"\n\n") < 2:
            content += await response.content.readany()
        more = asyncio.ensure_future(response.content.readany())
        [call] = standin.batch.running
        made = call.generated
        while call.generated < made + 5:
            await asyncio.sleep(0.01)
        assert not more.done()
        more.cancel()
        async with session.get(f"{proxy.url}/health") as health:
            assert health.status == 200
        response.close()
    await standin.until(lambda each: each.aborted == 1)
