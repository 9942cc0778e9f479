"""Engines that answer badly: with an error, half of an answer, or something else altogether."""

import asyncio
import json

import openai
import pytest
from aiohttp import web

from kairos.core import Cancelled, Failed, Finished, InstanceLeft

STREAM = {"stream": True, "stream_options": {"include_usage": True}}
CHUNK = b'data: {"choices":[{"delta":{"content":"x"}}],"usage":null}\n\n'
DONE = b"data: [DONE]\n\n"
JSON = {"Content-Type": "application/json"}


def events_of(body):
    assert body.endswith(b"\n\n")
    return [event.removeprefix(b"data: ") for event in body.split(b"\n\n")[:-1]]


async def closed(reader):
    """Read to the end of a connection that the other side breaks off."""
    async with asyncio.timeout(60):
        try:
            return await reader.read()
        except ConnectionError:
            return b""


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
    wire = await served.post_raw("/v1/chat/completions", {"messages": []})
    answer = await wire.answer()

    assert elsewhere.calls == []
    assert answer.status == 502
    assert "307" in answer.error()["message"]
    assert elsewhere.url not in f"{answer.headers}{answer.body}"
    assert (await served.facts.seen(Failed)).reason == "upstream_failed"


async def test_an_answer_that_never_begins_is_to_be_retried(served, engine):
    for body in ({}, STREAM):
        engine.answer = engine.stream(then=lambda transport: transport.abort())
        engine.release()
        (await served.chat(**body)).is_to_be_retried("upstream_unreachable")


async def test_a_whole_answer_that_breaks_off_is_to_be_retried(served, engine):
    async def half(request):
        response = web.StreamResponse(headers={**JSON, "Content-Length": "100"})
        await response.prepare(request)
        await response.write(b"x" * 50)
        request.transport.close()
        return response

    engine.answer = half
    (await served.chat()).is_to_be_retried("upstream_unreachable")


async def test_a_large_answer_that_breaks_off_is_broken_off(served, engine, caplog):
    async def half(request):
        response = web.StreamResponse(headers={**JSON, "Content-Length": str(20 << 20)})
        await response.prepare(request)
        await response.write(b"x" * (10 << 20))
        request.transport.close()
        return response

    engine.answer = half
    wire = await served.post_raw("/v1/chat/completions", {"messages": []})
    assert (await wire.head())[0] == 200
    assert not (await closed(wire.reader)).endswith(b"0\r\n\r\n")
    assert (await served.facts.seen(Failed)).reason == "upstream_failed"
    caplog.clear()  # uvicorn tells of every answer that is broken off


@pytest.mark.parametrize("body", [{"stream": True}, STREAM], ids=["usage removed", "as it comes"])
async def test_a_stream_that_breaks_off_ends_with_an_error_event(served, engine, body):
    engine.answer = engine.stream(CHUNK, then=lambda transport: transport.abort())
    engine.release(2)
    answer = await served.chat(**body)

    first, error, done = events_of(answer.body)
    assert (answer.status, first, done) == (200, events_of(CHUNK)[0], b"[DONE]")
    assert "broke off its answer" in json.loads(error)["error"]["message"]
    assert (await served.facts.seen(Failed)).reason == "upstream_failed"


@pytest.mark.parametrize("body", [{"stream": True}, STREAM], ids=["usage removed", "as it comes"])
async def test_a_stream_that_ends_before_it_says_so_ends_with_an_error_event(served, engine, body):
    engine.answer = engine.stream(CHUNK)
    engine.release()
    answer = await served.chat(**body)

    _, error, done = events_of(answer.body)
    assert "before it was complete" in json.loads(error)["error"]["message"]
    assert done == b"[DONE]"
    assert (await served.facts.seen(Failed)).reason == "upstream_failed"


async def test_a_stream_that_is_empty_is_an_error(served, engine):
    engine.answer = engine.stream()
    answer = await served.chat(stream=True)

    assert (answer.status, answer.error()["code"]) == (502, "upstream_failed")


@pytest.mark.parametrize("event", [b"data: {not json\n\n", b"event: \xff\n\ndata: <html>\n\n"])
async def test_a_stream_that_begins_as_none_is_an_error(served, engine, event):
    engine.answer = engine.stream(event, DONE)
    engine.release(2)
    answer = await served.chat(**STREAM)

    assert (answer.status, answer.error()["code"]) == (502, "upstream_failed")
    assert (await served.facts.seen(Failed)).by_instance


async def test_of_an_event_that_breaks_off_the_client_has_nothing_but_the_error(served, engine):
    engine.answer = engine.stream(CHUNK, CHUNK[:9], then=lambda transport: transport.abort())
    engine.release(3)
    first, error, done = events_of((await served.chat(**STREAM)).body)
    assert (b"data: " + first + b"\n\n", done) == (CHUNK, b"[DONE]")
    assert json.loads(error)["error"]["code"] == "upstream_failed"
    assert (await served.facts.seen(Failed)).reason == "upstream_failed"

    engine.release(3)
    async with openai.AsyncOpenAI(
        base_url=served.url + "/v1", api_key="-", max_retries=0
    ) as client:
        stream = await client.chat.completions.create(model="tiny", messages=[], **STREAM)
        with pytest.raises(openai.OpenAIError):
            [chunk async for chunk in stream]


async def test_events_that_are_not_read_break_off_where_the_engine_breaks_off(
    served, engine, caplog
):
    engine.answer = engine.stream(CHUNK, CHUNK[:9], then=lambda transport: transport.abort())
    engine.release(3)
    wire = await served.post_raw(
        "/v1/audio/speech", {"model": "tiny", "input": "a", "stream": True}
    )
    await wire.head()

    assert b'"error"' not in await closed(wire.reader)
    assert (await served.facts.seen(Failed)).reason == "upstream_failed"
    caplog.clear()  # uvicorn tells of every answer that is broken off


async def test_an_error_event_of_the_engine_is_passed_on_and_noted(served, engine):
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


async def test_an_engine_that_talks_no_http_is_unreachable(served, engine):
    async def babble(request):
        request.transport.write(b"\x00\x01 this is no HTTP\r\n\r\n")
        request.transport.close()
        return web.Response()

    engine.answer = babble
    (await served.chat()).is_to_be_retried("upstream_unreachable")
