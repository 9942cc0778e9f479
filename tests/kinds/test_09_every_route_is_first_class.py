"""Kind 9: each route of engines is served as well as the others, in its own form.

A row for each route, a column for each thing that may happen to its calls; no cell is empty.
"""

import asyncio

import pytest
from aiohttp import web

from kairos.core import Arrived, Finished
from kairos.request import ROUTES
from tests.e2e.batch_files import key
from tests.kinds.table import body, says

EACH = pytest.mark.parametrize("route", ROUTES)
ENDS = {
    "/v1/messages": b'event: message_stop\ndata: {"type":"message_stop"}\n\n',
    "/v1/responses": b'data: {"type":"response.completed","response":{}}\n\n',
}
EVENT = b'data: {"type":"x","choices":[{"index":0}]}\n\n'


async def whole(request):
    usage = {"prompt_tokens": 30, "completion_tokens": 4}
    if request.path == "/v1/messages":
        usage = {"input_tokens": 20, "cache_read_input_tokens": 10, "output_tokens": 4}
    return web.json_response({"object": "whole", "usage": usage})


def form_of(route, answer):
    """Check that the error is in the form of the route's API, and return it."""
    error = answer.error()
    assert (answer.json().get("type") == "error") is (ROUTES[route].protocol == "anthropic")
    return error


@EACH
async def test_failover(kairos, engines, route):
    one, two = await engines(), await engines()
    served = await kairos(one.url, two.url)
    for fault in (says(503), says(500), says(404), says(401)):
        one.answer, two.answer = fault, whole
        for _ in range(2):
            assert (await served.ask("POST", route, json=body(route))).status == 200


@EACH
async def test_ping(kairos, engine, monkeypatch, route):
    """Where a stream is not read, nothing comes before the engine's own first byte."""
    monkeypatch.setattr("kairos.proxy.call.KEEP_ALIVE_S", 0.01)
    served = await kairos(engine.url)
    engine.answer = engine.when_released
    wire = await served.connect()
    await wire.post(route, body(route, stream=True))
    await engine.called(1)
    if ROUTES[route].reads_stream:
        ping = b"event: ping\n" if ROUTES[route].protocol == "anthropic" else b": waiting"
        async with asyncio.timeout(60):
            await wire.reader.readuntil(ping)
    engine.release()
    async with asyncio.timeout(60):
        await wire.reader.readuntil(b'"made up"')


@EACH
async def test_abort(kairos, engine, route):
    served = await kairos(engine.url)
    engine.answer = engine.when_released
    wire = await served.connect()
    await wire.post(route, body(route))
    await engine.called(1)
    await wire.close()
    await engine.until(lambda: engine.lost == 1)


@EACH
async def test_usage(kairos, engine, route):
    """Expect no facts of calls that need no memory."""
    served = await kairos(engine.url)
    engine.answer = whole
    assert (await served.ask("POST", route, json=body(route))).status == 200
    if ROUTES[route].needs_memory:
        finished = await served.facts.seen(Finished)
        assert (finished.prompt_tokens, finished.completion_tokens) == (30, 4)
        assert finished.cached_tokens == (10 if route == "/v1/messages" else None)
    else:
        assert served.facts.all(Arrived) == []


@EACH
async def test_torn_stream(kairos, engine, route):
    """The client cannot take it for whole: its last event is an error, in the route's own form."""
    served = await kairos(engine.url)
    engine.answer = engine.stream(EVENT, then=lambda transport: transport.abort())
    engine.release(2)
    wire = await served.connect()
    await wire.post(route, body(route, stream=True))
    async with asyncio.timeout(60):
        said = await wire.reader.readuntil(b"0\r\n\r\n")
    is_named = ROUTES[route].protocol == "anthropic"
    assert (b"event: error\n" in said) is is_named
    assert (b"[DONE]" in said) is not is_named
    assert b'"error"' in said


@EACH
async def test_whole_stream(kairos, engine, route):
    served = await kairos(engine.url)
    last = ENDS.get(route, b"data: [DONE]\n\n")
    engine.answer = engine.stream(EVENT, last)
    engine.release(2)
    answer = await served.ask("POST", route, json=body(route, stream=True))
    assert (answer.status, answer.body) == (200, EVENT + last)


@EACH
@pytest.mark.parametrize("content", ['{"temperature": NaN}', '{"model"', '{"a": "\ud800"}', "[1]"])
async def test_wrong_body(kairos, engine, route, content):
    served = await kairos(engine.url)
    kind = {"Content-Type": "application/json"}
    data = content.encode("utf-8", "surrogatepass")
    answer = await served.ask("POST", route, data=data, headers=kind)
    assert (answer.status, form_of(route, answer)["code"]) == (400, "invalid_request")
    assert engine.calls == []


@EACH
async def test_wrong_key(kairos, engine, route):
    served = await kairos(engine.url, key=(key("acme"),))
    for shown in ({}, {"x-api-key": "no"}, {"Authorization": "Bearer no"}):
        answer = await served.ask("POST", route, json=body(route), headers=shown)
        assert (answer.status, form_of(route, answer)["code"]) == (401, "invalid_api_key")
        assert answer.headers["x-should-retry"] == "false"
    assert engine.calls == []


@EACH
async def test_unknown_model(kairos, engine, route):
    served = await kairos(engine.url)
    answer = await served.ask("POST", route, json=body(route, model="another"))
    assert (answer.status, form_of(route, answer)["code"]) == (404, "model_not_found")
    assert engine.calls == []


UNKNOWN = [
    (404, "application/json", b'{"detail":"Not Found"}'),
    (405, "application/json", b'{"detail":"Method Not Allowed"}'),
    (404, "application/json", b'{"error":{"code":404,"message":"File Not Found"}}'),
    (404, "text/plain", b"404 page not found\n"),
    (404, "text/plain", b"404: Not Found"),
    (404, "text/html", b"<html><head><title>404 Not Found</title></head></html>"),
]


@pytest.mark.parametrize("route", ["/v1/messages", "/v1/responses", "/v1/rerank", "/tokenize"])
@pytest.mark.parametrize(("status", "kind", "content"), UNKNOWN)
async def test_an_engine_without_the_route_is_named(kairos, engines, route, status, kind, content):
    both = [await engines() for _ in range(2)]

    async def unknown(_):
        return web.Response(status=status, body=content, content_type=kind)

    for each in both:
        each.answer = unknown
    served = await kairos(*(each.url for each in both))
    answer = await served.ask("POST", route, json=body(route))
    error = form_of(route, answer)
    assert (answer.status, error["code"]) == (404, "route_not_served")
    assert route in error["message"]
    both[0].answer = says(404)  # about a model, or what it keeps: in its own words
    both[1].answer = says(404)
    told = await served.ask("POST", route, json=body(route))
    assert told.json()["error"]["message"] == "mine"
