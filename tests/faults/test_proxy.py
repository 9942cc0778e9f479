"""The proxy itself, before the stand-in: each fault does what it says, to whom it was meant for."""

import asyncio
import json
import time
from contextlib import suppress

import aiohttp
import pytest

from kairos.standin import server as standins
from kairos.standin.batch import Timing
from tests.faults.faults import Cut, Delay, Drip, HangUp, Noise, Stall, Status, Stop, WrongBody
from tests.faults.proxy import Proxy
from tests.faults.wire import BODY_LIMIT_BYTES

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


async def raw(proxy, count=None):
    """The first so many bytes of the answer to a streamed call, as they come; or all."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(proxy.url.rsplit(":", 1)[1]))
    content = json.dumps(body(stream=True)).encode()
    head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(content)}\r\n\r\n"
    writer.write(head.encode() + content)
    try:
        return await (reader.read() if count is None else reader.readexactly(count))
    finally:
        writer.close()


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


async def test_connections_are_kept_between_requests(session, proxy):
    connector = session.connector
    for _ in range(3):
        assert (await chat(session, proxy))[0] == 200
        assert sum(map(len, connector._conns.values())) == 1
    assert len(proxy._connections) == 1


async def test_a_large_body_goes_through_with_a_length_or_in_chunks(session, standin, proxy):
    text = "x" * 20_000
    content = json.dumps(body(messages=[{"role": "user", "content": text}])).encode()

    async def pieces():
        yield content[:9_000]
        yield content[9_000:]

    for data in (content, pieces()):
        async with session.post(proxy.url + CHAT, data=data) as response:
            assert response.status == 200
    assert [len(each.body) for each in standin.received] == [len(content)] * 2


async def test_a_body_over_its_limit_is_not_held(proxy):
    reader, writer = await asyncio.open_connection("127.0.0.1", int(proxy.url.rsplit(":", 1)[1]))
    writer.write(b"POST / HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % (BODY_LIMIT_BYTES + 1))
    async with asyncio.timeout(LIMIT_S):
        assert await reader.read() == b""
    writer.close()


async def test_a_fault_is_for_so_many_calls_and_health_is_let_through(session, proxy):
    proxy.hurt(Status(500), times=2)
    async with session.get(f"{proxy.url}/health") as response:
        assert response.status == 200
    assert [(await chat(session, proxy))[0] for _ in range(3)] == [500, 500, 200]
    assert proxy.hurts == {"Status": 2}


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


async def test_a_delay_comes_before_the_engine_hears_of_the_call(session, standin, proxy):
    proxy.hurt(Delay(0.3))
    began = time.monotonic()
    calling = asyncio.create_task(chat(session, proxy))
    await asyncio.sleep(0.1)
    assert len(standin.received) == 0
    assert (await calling)[0] == 200
    assert time.monotonic() - began >= 0.3


async def test_a_connection_is_cut_before_the_first_byte(session, standin, proxy):
    proxy.hurt(Cut())
    assert await received(session, proxy) == (None, b"")
    assert len(standin.received) == 1


@pytest.mark.parametrize("count", [1, 100, 400])
async def test_a_connection_is_cut_after_so_many_bytes(proxy, count):
    whole = await raw(proxy, 400)
    proxy.hurt(Cut(after_bytes=count))
    cut = await raw(proxy)
    assert len(cut) == count
    assert cut[:50] == whole[:count][:50]


@pytest.mark.parametrize("count", [1, 3])
async def test_a_connection_is_cut_after_so_many_events(session, proxy, count):
    proxy.hurt(Cut(after_events=count))
    status, content = await received(session, proxy)
    assert status == 200
    assert content.count(b"\n\n") == count
    assert content.endswith(b"\n\n")


async def test_a_place_that_the_answer_does_not_reach_leaves_it_whole(session, proxy):
    proxy.hurt(Cut(after_events=TOKENS + 100))
    _, content = await received(session, proxy)
    assert content.endswith(b"data: [DONE]\n\n")


async def test_an_answer_stops_as_if_it_were_whole(session, proxy):
    proxy.hurt(Stop(after_events=3), times=2)
    status, content = await chat(session, proxy, stream=True)
    assert (status, content.count(b"\n\n")) == (200, 3)
    assert json.loads((await chat(session, proxy))[1])["choices"]  # which has no chunks
    assert len(proxy._connections) == 1


async def test_a_stalled_call_ends_for_the_engine_when_its_client_leaves(session, proxy, standin):
    proxy.hurt(Stall(after_events=2))
    standin.batch._timing = Timing(step_s=0.05)
    async with session.post(proxy.url + CHAT, json=body(stream=True, max_tokens=500)) as response:
        content = b""
        while content.count(b"\n\n") < 2:
            content += await response.content.readany()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await response.content.readany()
        async with session.get(f"{proxy.url}/health") as health:
            assert health.status == 200
        response.close()
    await standin.until(lambda each: each.aborted == 1)


async def test_a_stall_may_come_before_the_answer(session, proxy):
    proxy.hurt(Stall())
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.3):
            await chat(session, proxy)


async def test_an_answer_drips_byte_by_byte(proxy):
    proxy.hurt(Drip(bytes_per_s=50))
    began = time.monotonic()
    assert (await raw(proxy, 20)).startswith(b"HTTP/1.1 200 OK")
    assert time.monotonic() - began >= 18 / 50


async def test_noise_is_no_http_and_the_same_for_the_same_seed(standin):
    heard = []
    for seed in (1, 1, 2):
        async with Proxy(standin.url, seed=seed) as proxy, asyncio.timeout(LIMIT_S):
            proxy.hurt(Noise())
            heard.append(await raw(proxy))
    assert heard[0] == heard[1] != heard[2]
    assert not heard[0].startswith(b"HTTP")


async def test_a_wrong_body_is_no_json_and_a_wrong_stream_is_none(session, proxy):
    proxy.hurt(WrongBody())
    proxy.hurt(WrongBody(streamed=True))
    for kind in ("application/json", "text/event-stream"):
        async with session.post(proxy.url + CHAT, json=body()) as response:
            assert (response.status, response.content_type) == (200, kind)
            with pytest.raises(ValueError):
                json.loads(await response.read())


async def test_a_kept_connection_is_closed_after_an_answer_unannounced(session, proxy):
    proxy.hurt(HangUp())
    async with session.post(proxy.url + CHAT, json=body()) as response:
        assert response.headers.get("Connection") is None
        assert json.loads(await response.read())["choices"]
    async with asyncio.timeout(LIMIT_S):
        while proxy._connections:
            await asyncio.sleep(0.01)


async def test_idle_connections_are_closed_and_busy_ones_are_not(session, proxy, standin):
    standin.batch.pause()
    calling = asyncio.create_task(chat(session, proxy))
    await standin.until(lambda each: each.received)
    async with session.get(f"{proxy.url}/health"):
        pass
    while len(proxy._busy) > 1:
        await asyncio.sleep(0.01)
    assert proxy.close_idle() == 1
    standin.batch.resume()
    assert (await calling)[0] == 200


async def test_nobody_listens_until_it_listens_again_at_the_same_place(session, proxy, standin):
    standin.batch.pause()
    calling = asyncio.create_task(chat(session, proxy))
    await standin.until(lambda each: each.received)
    url = proxy.url
    await proxy.refuse()
    with pytest.raises(aiohttp.ClientError):
        await calling
    with pytest.raises(aiohttp.ClientConnectorError):
        await chat(session, proxy)
    await proxy.listen()
    standin.batch.resume()
    assert proxy.url == url
    assert (await chat(session, proxy))[0] == 200


async def test_a_connection_is_taken_slowly(session, proxy):
    proxy.accept_delay_s = 0.3
    began = time.monotonic()
    assert (await chat(session, proxy))[0] == 200
    assert time.monotonic() - began >= 0.3


async def test_an_engine_that_is_not_there_is_told_apart(session, unused_port):
    told = []
    engine = f"http://127.0.0.1:{unused_port}"
    async with Proxy(engine, on_hurt=lambda request, how: told.append((request.path, how))) as it:
        with pytest.raises(aiohttp.ServerDisconnectedError):
            await chat(session, it)
    assert told == [(CHAT, "EngineBrokeOff")]


@pytest.fixture
def unused_port():
    from tests.support.ports import free_ports

    return free_ports(1)[0]
