"""Flows whose client is told what is done as it is done."""

import asyncio

import pytest

from kairos.core import Cancelled
from kairos.workflows.serve import flow_routes
from tests.e2e.flows import MANY, answers, events, invoke, kept_in, put
from tests.support.waiting import until


@pytest.fixture
async def served(kairos, engine, tmp_path):
    answers(engine)
    return await kairos(engine.url, flows=kept_in(tmp_path / "flows"))


async def test_operators_are_told_as_they_finish_then_the_outputs(served):
    await put(served)
    answer = await invoke(served, {"text": "x"}, stream=True)

    assert answer.status == 200
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    told = events(answer.body)
    assert [name for name, _ in told] == ["operator", "operator", "outputs", None]
    first, second, outputs, done = (value for _, value in told)
    assert (first["object"], first["operator"]) == ("flow.operator", "summary")
    assert (first["prompt_tokens"], first["completion_tokens"]) == (10, 3)
    assert second["operator"] == "verdict"
    assert 0 <= first["at_s"] <= second["at_s"] <= outputs["took_s"]
    assert outputs["outputs"]["summary"] == "<Summarise: x>"
    assert done == "[DONE]"


async def test_an_operator_is_told_before_the_next_one_has_its_answer(served, engine):
    await put(served)

    async def held(request):
        await engine.turns.acquire()
        return await answered(request)

    answered, engine.answer = engine.answer, held
    wire = await served.connect()
    body = {"inputs": {"text": "x"}, "stream": True}
    await wire.post("/v1/flows/reports/invoke", body)
    engine.release()
    status, _ = await wire.head()
    chunks = wire.chunks()
    first = await anext(chunks)
    assert status == 200
    assert b'"operator":"summary"' in first
    await engine.called(2)
    engine.release()
    rest = b"".join([chunk async for chunk in chunks])
    assert [name for name, _ in events(rest)] == ["operator", "outputs", None]


async def test_what_cannot_begin_is_refused_with_its_own_status(served):
    assert (await invoke(served, {"text": "x"}, stream=True)).status == 404
    await put(served)
    assert (await invoke(served, {}, stream=True)).status == 400


async def test_what_fails_on_the_way_is_told_in_the_stream(served, engine):
    await put(served)
    spent = {"X-Kairos-Budget-Calls": "1"}
    answer = await invoke(served, {"text": "x"}, headers=spent, stream=True)

    told = events(answer.body)
    assert [name for name, _ in told] == ["operator", "error", None]
    assert told[1][1]["error"]["code"] == "budget_calls"


async def test_events_are_bounded_and_those_left_out_are_counted(served, monkeypatch):
    monkeypatch.setattr(flow_routes, "MOST_EVENTS", 2)
    await put(served, MANY, "many")
    answer = await invoke(served, {"items": list(range(5))}, "many", stream=True)
    told = events(answer.body)
    assert [name for name, _ in told] == ["operator", "operator", "outputs", None]
    assert told[2][1]["events_left_out"] == 3


async def test_a_stream_of_which_nothing_comes_is_kept_alive(served, engine, monkeypatch):
    monkeypatch.setattr(flow_routes, "KEEP_ALIVE_S", 0.05)
    await put(served)
    engine.answer = engine.when_released
    wire = await served.post_raw(
        "/v1/flows/reports/invoke", {"inputs": {"text": "x"}, "stream": True}
    )
    await wire.head()
    assert await anext(wire.chunks()) == b": running\n\n"


async def test_a_client_that_leaves_a_stream_ends_its_calls(served, engine, monkeypatch):
    monkeypatch.setattr(flow_routes, "KEEP_ALIVE_S", 0.05)
    await put(served)
    before = running()
    engine.answer = engine.when_released
    wire = await served.post_raw(
        "/v1/flows/reports/invoke", {"inputs": {"text": "x"}, "stream": True}
    )
    await wire.head()
    await engine.called()
    await wire.close()
    await served.facts.seen(Cancelled)
    await engine.until(lambda: engine.lost == 1)
    await until(lambda: running() <= before)


def running():
    return sum("_tell" in task.get_coro().__qualname__ for task in asyncio.all_tasks())
