"""Streams that wait in the queue: their clients hear that they are not forgotten."""

import asyncio
import gc
import json

import openai
import pytest
from aiohttp import web

from kairos.core import Arrived, Bounced, Cancelled, Failed, FirstToken, InstanceLeft
from kairos.proxy import call as module
from tests.e2e.test_failures import CHUNK, DONE, STREAM
from tests.support.engines.probes import probe_every
from tests.support.loop_clock import moved_clock
from tests.support.simulate import standin as standins
from tests.support.simulate.standin import Timing

COMMENT = b": waiting for an instance\n\n"


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    monkeypatch.setattr(module, "KEEP_ALIVE_S", 0.05)
    probe_every(monkeypatch)


@pytest.fixture
async def clock():
    with moved_clock() as clock:
        yield clock


@pytest.fixture
async def waiting(kairos, engine):
    """Kairos before an engine that is taken, and a stream that waits and has been told so."""
    served = await kairos(engine.url, max_num_seqs=1)
    engine.answer = engine.when_released
    first = asyncio.create_task(served.chat())
    await engine.called()
    wire = await served.connect()
    asked = {"model": "tiny", "messages": []} | STREAM
    await wire.post("/v1/chat/completions", asked, "X-Request-Id: waits")
    status, headers = await wire.head()
    assert (status, headers["x-request-id"]) == (200, "waits")
    assert headers["content-type"].startswith("text/event-stream")
    chunks = wire.chunks()
    assert [await anext(chunks) for _ in range(3)] == [COMMENT] * 3
    yield served, engine, chunks
    await first


async def rest(chunks):
    """What comes but comments."""
    return b"".join([each async for each in chunks if each != COMMENT])


async def test_then_comes_the_answer(waiting):
    _, engine, chunks = waiting
    engine.answer = engine.stream(CHUNK, DONE)
    engine.release(3)
    assert await rest(chunks) == CHUNK + DONE


async def test_or_what_the_engine_says_instead(waiting):
    _, engine, chunks = waiting

    async def refuse(request):
        return web.Response(
            status=400, text='{"error":\n{"code": 400}}', content_type="application/json"
        )

    engine.answer = refuse
    engine.release()
    assert await rest(chunks) == b'data: {"error":\ndata: {"code": 400}}\n\n' + DONE


async def test_or_an_error_of_kairos(waiting):
    served, engine, chunks = waiting
    served.service.brain.feed(InstanceLeft(next(iter(served.balancer.ledger.instances))))
    engine.release()
    said = await rest(chunks)
    assert said.endswith(b"\n\n" + DONE)
    error = json.loads(said.removeprefix(b"data: ").partition(b"\n\n")[0])["error"]
    assert error["code"] == "no_instance"


async def test_one_that_leaves_as_it_is_refused_leaves_nothing_behind(kairos, engine):
    """It is refused while facts are told, and leaves before it could be seen to."""
    served = await kairos(engine.url, max_num_seqs=1)
    unseen = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: unseen.append(context["message"]))
    engine.answer = engine.when_released
    first = asyncio.create_task(served.chat())
    await engine.called()
    wire = await served.post_raw("/v1/chat/completions", {"model": "tiny", "messages": []} | STREAM)
    await wire.head()
    live = served.service.brain.runtime._engine._expected
    [waits] = [turn.call for turn in live.values() if not turn.is_over]
    served.service.brain.feed(InstanceLeft(next(iter(served.balancer.ledger.instances))))
    waits.client_left()
    wire.leave()
    await served.facts.until(lambda: served.facts.all(Cancelled))
    engine.release()
    await first
    gc.collect()
    loop.set_exception_handler(None)
    assert unseen == []
    assert served.facts.all(Failed) == []


async def test_a_call_that_has_but_waited_can_go_on_elsewhere(kairos, engines, monkeypatch):
    commented, comment = asyncio.Event(), module.WaitComments._comment
    monkeypatch.setattr(
        module.WaitComments, "_comment", lambda self: (comment(self), commented.set())
    )
    one, other = await engines(), await engines()
    served = await kairos(one.url, other.url, max_num_seqs=1)
    for each in (one, other):
        each.answer = each.when_released
    others = [asyncio.create_task(served.chat()) for _ in range(2)]
    await one.called()
    await other.called()
    stream = asyncio.create_task(served.chat(**STREAM))
    await served.facts.seen(Arrived, 3)
    await asyncio.wait_for(commented.wait(), 60)
    turns = iter([500])

    async def answer(request):
        if next(turns, None):
            return web.json_response({}, status=500)
        return web.Response(body=CHUNK + DONE, content_type="text/event-stream")

    one.answer = other.answer = answer
    one.release()
    other.release()

    answer = await stream
    assert answer.body.replace(COMMENT, b"") == CHUNK + DONE
    assert COMMENT in answer.body
    await asyncio.gather(*others)
    assert len(served.facts.all(Bounced)) == 1


async def test_one_that_does_not_wait_hears_of_nothing(served, engine, clock):
    engine.answer = engine.stream(CHUNK, DONE)
    stream = asyncio.create_task(served.chat(**STREAM))
    await engine.called()
    await clock.passes(1.0)  # the engine takes its time
    engine.release(2)
    assert (await stream).body == CHUNK + DONE


async def test_nor_one_whose_answer_comes_whole(kairos, engine, clock):
    served = await kairos(engine.url, max_num_seqs=1)
    engine.answer = engine.when_released
    both = [asyncio.create_task(served.chat()) for _ in range(2)]
    await served.facts.seen(Arrived, 2)
    await clock.passes(1.0)
    engine.release(2)
    assert [(await each).json()["object"] for each in both] == ["made up"] * 2


@pytest.fixture
async def slow():
    settings = standins.StandInSettings(model="tiny", timing=Timing(step_s=0.02))
    async with standins.serve(settings) as served:
        yield served


async def test_openais_client_reads_past_it(kairos, slow):
    served = await kairos(slow.url, max_num_seqs=1)
    client = openai.AsyncOpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0)
    said = {"model": "tiny", "messages": [{"role": "user", "content": "Hello"}], "stream": True}
    async with client:
        first = await client.chat.completions.create(**said, max_tokens=60)
        await served.facts.seen(FirstToken)
        second = await client.chat.completions.create(**said, max_tokens=5)
        assert served.balancer.waiting == 1
        async for _ in first:
            pass
        words = [each.choices[0].delta.content async for each in second if each.choices]
    assert len([word for word in words if word]) == 5
