"""Invocations of a tenant share what is deterministic: in flight, and for a while after it."""

import asyncio
import json

import pytest
from aiohttp import web

from kairos.core import Arrived
from tests.e2e.batch_files import key
from tests.e2e.flows import answers, invoke, kept_in, prompts, put

# Eight calls, of which three are sampled.
MIXED = """
flow: mixed
operators:
  row: {kind: input}
  facts: {kind: llm, prompt: "Facts of {{ row.text }}"}
  dates: {kind: llm, prompt: "Dates in {{ facts }}"}
  names: {kind: llm, prompt: "Names in {{ facts }}"}
  places: {kind: llm, prompt: "Places in {{ facts }}"}
  outline: {kind: llm, prompt: "Outline {{ dates }} {{ names }} {{ places }}"}
  first: {kind: llm, prompt: "Write {{ outline }}", temperature: 0.7}
  second: {kind: llm, prompt: "Write again {{ outline }}", temperature: 0.7}
  best: {kind: llm, prompt: "Better of {{ first }} or {{ second }}", temperature: 0.7}
outputs: {best: best}
"""
LONG = """
flow: long
operators:
  row: {kind: input}
  slow: {kind: llm, prompt: "Slow {{ row.text }}"}
  end: {kind: llm, prompt: "End {{ slow }}"}
outputs: {end: end}
"""


@pytest.fixture
async def start(kairos, engine, tmp_path):
    answers(engine)

    async def start(**given):
        flows = kept_in(tmp_path / "flows", **given.pop("settings", {}))
        return await kairos(engine.url, flows=flows, **given)

    return start


@pytest.fixture
async def served(start):
    """A Kairos that serves the flow `long`."""
    served = await start()
    await put(served, LONG, "long")
    return served


async def invoked(served, texts, flow="mixed", **given):
    asked = (invoke(served, {"text": text}, flow, **given) for text in texts)
    return [answer.json() for answer in await asyncio.gather(*asked)]


@pytest.mark.parametrize(("settings", "together", "again"), [({}, 34, 3), ({"share_s": 0}, 64, 8)])
async def test_equal_calls_of_invocations_are_made_once(start, engine, settings, together, again):
    served = await start(settings=settings)
    await put(served, MIXED, "mixed")
    told = await invoked(served, ["a", "b"] * 4)
    assert len(prompts(engine)) == together
    assert len({each["outputs"]["best"] for each in told}) == 2

    [told] = await invoked(served, ["a"])
    assert len(prompts(engine)) == together + again
    assert told["usage"]["calls"] == again


async def test_tenants_share_nothing(start, engine):
    served = await start(key=(key("acme"), key("bolt")))
    for tenant in ("acme", "bolt"):
        headers = {"Authorization": f"Bearer {tenant}"}
        await put(served, LONG, "long", headers=headers)
        for _ in range(2):
            await invoked(served, ["x"], "long", headers=headers)
    assert prompts(engine) == ["Slow x", "End <Slow x>"] * 2


async def held(engine):
    """Let the engine hold each call until it is released."""
    reply = answers(engine).answer

    async def answer(request):
        await engine.turns.acquire()
        return await reply(request)

    engine.answer = answer


async def test_a_call_whose_client_leaves_is_made_by_one_that_waits_for_it(served, engine):
    await held(engine)
    wire = await served.post_raw("/v1/flows/long/invoke", {"inputs": {"text": "x"}})
    await engine.called()
    waiting = [asyncio.create_task(invoke(served, {"text": "x"}, "long")) for _ in range(3)]
    other = asyncio.create_task(invoke(served, {"text": "y"}, "long"))
    await engine.called(2)  # the other one's: those before it have come as far
    await wire.close()
    await engine.called(3)
    engine.release(99)
    for each in [*waiting, other]:
        assert (await each).status == 200
    assert sorted(prompts(engine)) == sorted(
        ["Slow x", "Slow x", "Slow y", "End <Slow x>", "End <Slow y>"]
    )


async def test_a_call_that_fails_is_made_by_one_that_waits_for_it(served, engine):
    first = [400]
    reply = answers(engine).answer

    async def answer(request):
        await engine.turns.acquire()
        if first:
            return web.json_response({"error": {"message": "no"}}, status=first.pop())
        return await reply(request)

    engine.answer = answer
    asked = [asyncio.create_task(invoke(served, {"text": "x"}, "long")) for _ in range(3)]
    await engine.called()
    engine.release(99)
    statuses = sorted([(await each).status for each in asked])
    assert statuses == [200, 200, 400]
    assert prompts(engine) == ["Slow x", "Slow x", "End <Slow x>"]


async def test_a_call_of_another_class_is_not_waited_for(served, engine):
    await held(engine)
    for name in ("batch", "interactive"):
        headers = {"X-Kairos-Class": name}
        asyncio.create_task(invoke(served, {"text": "x"}, "long", headers=headers))  # noqa: RUF006
    await engine.called(2)
    classes = {fact.request.service_class for fact in served.facts.all(Arrived)}
    assert classes == {"batch", "interactive"}
    engine.release(99)


async def test_a_chat_with_a_flow_is_told_what_another_one_was(served, engine):
    body = {"model": "flow/long", "messages": [{"role": "user", "content": "x"}], "stream": True}
    told = [await served.ask("POST", "/v1/chat/completions", json=body) for _ in range(2)]
    assert len(prompts(engine)) == 2
    texts = [
        "".join(
            choice["delta"].get("content", "")
            for line in each.body.decode().splitlines()
            if line.startswith("data: {")
            for choice in json.loads(line[6:])["choices"]
        )
        for each in told
    ]
    assert texts == ["<End <Slow x>>"] * 2
