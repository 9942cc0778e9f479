"""Engines that are away, go away, come back, or answer badly."""

import asyncio
import json

import openai
import pytest
from aiohttp import web

from kairos.events import Arrived, Cancelled, Failed, Finished, InstanceJoined, InstanceLeft
from kairos.live import monitor

STREAM = {"stream": True, "stream_options": {"include_usage": True}}
CHUNK = b'data: {"choices":[{"delta":{"content":"x"}}],"usage":null}\n\n'
DONE = b"data: [DONE]\n\n"


def is_to_be_retried(answer, code):
    assert (answer.status, answer.error()["code"]) == (503, code)
    return answer.headers["retry-after"] == "1"


def events_of(body):
    assert body.endswith(b"\n\n")
    return [event.removeprefix(b"data: ") for event in body.split(b"\n\n")[:-1]]


async def closed(reader):
    """Read to the end of a connection that the other side breaks off."""
    async with asyncio.timeout(5):
        try:
            return await reader.read()
        except ConnectionError:
            return b""


@pytest.fixture
def often(monkeypatch):
    """Look at engines all the time, so that no test waits for the next look."""
    monkeypatch.setattr(monitor, "INTERVAL_S", 0.01)


@pytest.fixture
def seldom(monkeypatch):
    """Look at engines only when a call met trouble there."""
    monkeypatch.setattr(monitor, "INTERVAL_S", 1000)


# Away and back ----------------------------------------------------------------------------------


@pytest.mark.usefixtures("often")
async def test_kairos_starts_without_an_engine_and_uses_it_when_it_comes(
    kairos, engines, unused_port
):
    served = await kairos(f"http://127.0.0.1:{unused_port}", joins=0)
    assert is_to_be_retried(await served.chat(), "no_instance")
    assert (await served.ask("GET", "/health")).status == 503
    assert (await served.ask("GET", "/v1/models")).json()["data"] == []
    assert served.facts.all(Arrived) == []

    await engines(unused_port)
    await served.facts.seen(InstanceJoined)
    assert (await served.chat()).status == 200
    assert (await served.ask("GET", "/health")).status == 200


@pytest.mark.usefixtures("seldom")
async def test_a_call_that_finds_its_engine_gone_has_it_left_at_once(kairos, engine):
    served = await kairos(engine.url)
    await engine.stop()
    assert is_to_be_retried(await served.chat(), "upstream_unreachable")
    await served.facts.seen(InstanceLeft)

    assert is_to_be_retried(await served.chat(), "no_instance")
    assert [fact.reason for fact in served.facts.all(Failed)] == ["upstream_unreachable"]


@pytest.mark.usefixtures("often")
async def test_an_engine_that_comes_back_is_used_again(kairos, engines):
    first = await engines()
    served = await kairos(first.url)
    await served.chat()
    await first.stop()
    await served.facts.seen(InstanceLeft)
    again = await engines(int(first.url.rpartition(":")[2]))
    await served.facts.seen(InstanceJoined, 2)

    assert (await served.chat()).status == 200
    assert (len(first.calls), len(again.calls)) == (1, 1)


async def test_calls_go_to_the_engine_that_is_left(kairos, engines):
    dead, alive = await engines(), await engines()
    served = await kairos(dead.url, alive.url)
    await dead.stop()
    while not served.facts.all(InstanceLeft):
        await served.chat()
    assert [(await served.chat()).status for _ in range(4)] == [200] * 4


@pytest.mark.usefixtures("often")
async def test_what_waits_for_the_last_engine_is_refused_when_it_leaves(kairos, engine):
    served = await kairos(engine.url, max_num_seqs=1)
    engine.answer = engine.when_released
    asking = []
    for number in (1, 2, 3):
        asking.append(asyncio.create_task(served.chat()))
        await served.facts.seen(Arrived, number)

    async def unhealthy(_):
        return web.Response(status=503)

    engine.probe = unhealthy
    await served.facts.seen(InstanceLeft)
    refused = [await asking[1], await asking[2]]
    engine.release()

    assert (await asking[0]).status == 200  # what runs may end
    assert [is_to_be_retried(each, "no_instance") for each in refused] == [True, True]
    assert [fact.reason for fact in served.facts.all(Failed)] == ["no_instance"] * 2
    assert len(engine.calls) == 1


async def test_everybody_is_told_when_the_last_engine_dies(kairos, engine):
    served = await kairos(engine.url, max_num_seqs=1)
    engine.answer = engine.when_released
    asking = []
    for number in (1, 2, 3):
        asking.append(asyncio.create_task(served.chat()))
        await served.facts.seen(Arrived, number)
    await engine.called()
    await engine.stop()

    for answer in [await each for each in asking]:
        assert is_to_be_retried(answer, answer.error()["code"])


# Looking at engines ------------------------------------------------------------------------------


@pytest.mark.usefixtures("often")
async def test_one_slow_answer_is_not_taken_for_death_and_several_are(kairos, engine, monkeypatch):
    monkeypatch.setattr(monitor, "TIMEOUT_S", 0.02)
    served = await kairos(engine.url)
    healthy, slow = engine.probe, 0

    async def hang(_):
        nonlocal slow
        slow += 1
        engine.probe = hang if slow != monitor.SLOW_PROBES_ALLOWED else healthy
        await asyncio.Event().wait()

    engine.probe = hang
    await engine.until(lambda: slow == monitor.SLOW_PROBES_ALLOWED)
    here = len(engine.probes)
    await engine.until(lambda: len(engine.probes) >= here + 8)  # two looks that it answers
    assert served.facts.all(InstanceLeft) == []

    engine.probe = hang
    await served.facts.seen(InstanceLeft)
    assert slow == 2 * monitor.SLOW_PROBES_ALLOWED + 1
    assert "no answer within" in served.service.monitor.problems[engine.url[len("http://") :]]


@pytest.mark.usefixtures("often")
@pytest.mark.parametrize(
    ("path", "answer", "problem"),
    [
        ("/health", web.Response(status=503), "/health answered 503"),
        ("/health", web.Response(status=302, headers={"Location": "/v1/models"}), "answered 302"),
        ("/v1/models", web.Response(status=401), "/v1/models answered 401"),
        ("/v1/models", web.Response(text="{"), "names no model"),
        ("/v1/models", web.Response(text='{"data":[5,{}]}'), "names no model"),
        ("/v1/models", web.Response(body=b"\xff"), "names no model"),
    ],
)
async def test_an_engine_that_is_not_ready_is_not_used(kairos, engine, path, answer, problem):
    served = await kairos(engine.url)
    healthy = engine.probe

    async def broken(request):
        if request.raw_path != path:
            return await healthy(request)
        return web.Response(status=answer.status, body=answer.body, headers=answer.headers)

    engine.probe = broken
    await served.facts.seen(InstanceLeft)
    assert problem in served.service.monitor.problems[engine.url[len("http://") :]]
    engine.probe = healthy
    await served.facts.seen(InstanceJoined, 2)

    assert served.service.monitor.problems == {}


@pytest.mark.usefixtures("often")
async def test_what_an_engine_serves_from_now_on_is_noticed(kairos, engine):
    served = await kairos(engine.url)
    engine.models = ["tiny", "huge"]
    await served.facts.seen(InstanceJoined, 2)

    assert (await served.chat(model="huge")).status == 200
    listed = (await served.ask("GET", "/v1/models")).json()["data"]
    assert [model["id"] for model in listed] == ["huge", "tiny"]


@pytest.mark.parametrize(
    ("path", "answer", "limits"),
    [
        ("/nothing", "", (5, 600)),
        (
            "/metrics",
            'vllm:x 1\nvllm:cache_config_info{block_size="16",num_gpu_blocks="100"} 1.0\n',
            (5, 1600),
        ),
        ("/metrics", 'vllm:cache_config_info{block_size="16",num_gpu_blocks="None"} 1', (5, 600)),
        ("/props", '{"total_slots":4,"default_generation_settings":{"n_ctx":512}}', (4, 2048)),
        ("/props", '{"total_slots":"4"}', (5, 600)),
    ],
    ids=["nothing", "vLLM", "vLLM without blocks", "llama.cpp", "odd"],
)
async def test_what_an_engine_tells_of_its_limits_wins(kairos, engine, path, answer, limits):
    silent = engine.probe

    async def tell(request):
        return web.Response(text=answer) if request.raw_path == path else await silent(request)

    engine.probe = tell
    served = await kairos(engine.url, max_num_seqs=5, kv_tokens=600)

    told = (await served.facts.seen(InstanceJoined)).instance
    assert (told.max_num_seqs, told.kv_tokens) == limits


# Bad answers -------------------------------------------------------------------------------------


async def test_what_the_engine_refuses_is_passed_on_as_it_is(kairos, standin):
    served = await kairos(standin.url)
    answer = await served.chat(fail="unavailable")

    assert answer.status == 503
    assert answer.json()["error"]["type"] == "ServiceUnavailableError"
    assert (await served.facts.seen(Failed)).reason == "engine answered 503"
    assert served.facts.all(InstanceLeft) == []


async def test_an_engine_that_redirects_is_not_followed(kairos, engines):
    engine, elsewhere = await engines(), await engines()
    served = await kairos(engine.url)

    async def redirect(_):
        raise web.HTTPTemporaryRedirect(elsewhere.url + "/v1/chat/completions")

    engine.answer = redirect
    wire = await served.connect()
    await wire.post("/v1/chat/completions", {"messages": []})
    answer = await wire.answer()

    assert elsewhere.calls == []
    assert answer.status == 502
    assert "307" in answer.error()["message"]
    assert elsewhere.url not in f"{answer.headers}{answer.body}"
    assert (await served.facts.seen(Failed)).reason == "upstream_failed"


async def test_an_answer_that_never_begins_is_to_be_retried(kairos, engine):
    served = await kairos(engine.url)
    for body in ({}, STREAM):
        engine.answer = engine.stream(then=lambda transport: transport.abort())
        engine.release()
        assert is_to_be_retried(await served.chat(**body), "upstream_unreachable")


async def test_a_whole_answer_that_breaks_off_is_to_be_retried(kairos, engine):
    served = await kairos(engine.url)

    async def half(request):
        response = web.StreamResponse(headers={"Content-Length": "100"})
        await response.prepare(request)
        await response.write(b"x" * 50)
        request.transport.close()
        return response

    engine.answer = half
    assert is_to_be_retried(await served.chat(), "upstream_unreachable")


async def test_a_large_answer_that_breaks_off_is_broken_off(kairos, engine, caplog):
    served = await kairos(engine.url)

    async def half(request):
        response = web.StreamResponse(headers={"Content-Length": str(20 << 20)})
        await response.prepare(request)
        await response.write(b"x" * (10 << 20))
        request.transport.close()
        return response

    engine.answer = half
    wire = await served.connect()
    await wire.post("/v1/chat/completions", {"messages": []})
    assert (await wire.head())[0] == 200
    assert not (await closed(wire.reader)).endswith(b"0\r\n\r\n")
    assert (await served.facts.seen(Failed)).reason == "upstream_failed"
    caplog.clear()  # uvicorn tells of every answer that is broken off


@pytest.mark.parametrize("body", [{"stream": True}, STREAM], ids=["usage removed", "as it comes"])
async def test_a_stream_that_breaks_off_ends_with_an_error_event(kairos, engine, body):
    served = await kairos(engine.url)
    engine.answer = engine.stream(CHUNK, then=lambda transport: transport.abort())
    engine.release(2)
    answer = await served.chat(**body)

    first, error, done = events_of(answer.body)
    assert (answer.status, first, done) == (200, events_of(CHUNK)[0], b"[DONE]")
    assert "broke off its answer" in json.loads(error)["error"]["message"]
    assert (await served.facts.seen(Failed)).reason == "upstream_failed"


@pytest.mark.parametrize("body", [{"stream": True}, STREAM], ids=["usage removed", "as it comes"])
async def test_a_stream_that_ends_before_it_says_so_ends_with_an_error_event(kairos, engine, body):
    served = await kairos(engine.url)
    engine.answer = engine.stream(CHUNK)
    engine.release()
    answer = await served.chat(**body)

    _, error, done = events_of(answer.body)
    assert "before it was complete" in json.loads(error)["error"]["message"]
    assert done == b"[DONE]"
    assert (await served.facts.seen(Failed)).reason == "upstream_failed"


async def test_a_stream_that_is_empty_is_an_error(kairos, engine):
    served = await kairos(engine.url)
    engine.answer = engine.stream()
    answer = await served.chat(stream=True)

    assert (answer.status, answer.error()["code"]) == (502, "upstream_failed")


async def test_a_stream_that_breaks_off_amid_an_event_is_broken_off_there(kairos, engine, caplog):
    served = await kairos(engine.url)
    engine.answer = engine.stream(CHUNK, CHUNK[:9], then=lambda transport: transport.abort())
    engine.release(3)
    wire = await served.connect()
    await wire.post("/v1/chat/completions", {"messages": []} | STREAM)
    await wire.head()

    assert b'"error"' not in await closed(wire.reader)
    assert (await served.facts.seen(Failed)).reason == "upstream_failed"

    engine.release(3)
    async with openai.AsyncOpenAI(
        base_url=served.url + "/v1", api_key="-", max_retries=0
    ) as client:
        stream = await client.chat.completions.create(model="tiny", messages=[], **STREAM)
        with pytest.raises(openai.OpenAIError):
            [chunk async for chunk in stream]
    caplog.clear()  # uvicorn tells of every answer that is broken off


async def test_an_error_event_of_the_engine_is_passed_on_and_noted(kairos, engine):
    served = await kairos(engine.url)
    error = b'data: {"error": {"message": "EngineCore", "code": 500}}\n\n'
    engine.answer = engine.stream(CHUNK, error, DONE)
    for number, body in enumerate(({"stream": True}, STREAM), start=1):
        engine.release(3)
        assert (await served.chat(**body)).body == CHUNK + error + DONE
        assert "error in its stream" in (await served.facts.seen(Failed, number)).reason
    assert served.facts.all(Finished) == []


async def test_a_call_on_which_the_engine_stalls_ends_when_its_client_leaves(kairos, standin):
    served = await kairos(standin.url)
    for number, streams in enumerate((True, False), start=1):
        wire = await served.connect()
        body = {"model": "tiny", "messages": [{"role": "user", "content": "a"}], "fail": "stall"}
        await wire.post("/v1/chat/completions", body | {"stream": streams})
        await standin.until(lambda engine, number=number: len(engine.received) == number)
        if streams:
            await wire.head()
        wire.leave()
        await served.facts.seen(Cancelled, number)
        await standin.until(lambda engine, number=number: engine.aborted == number)


async def test_an_engine_that_talks_no_http_is_unreachable(kairos, engine):
    served = await kairos(engine.url)

    async def babble(request):
        request.transport.write(b"\x00\x01 this is no HTTP\r\n\r\n")
        request.transport.close()
        return web.Response()

    engine.answer = babble
    assert is_to_be_retried(await served.chat(), "upstream_unreachable")
