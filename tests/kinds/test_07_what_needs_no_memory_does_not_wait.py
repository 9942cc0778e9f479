"""Kind 7: what needs no KV memory does not wait for it; what needs more counts as more."""

import asyncio

import pytest
from aiohttp import web

from kairos.core import Arrived
from tests.kinds.table import CHAT, COMPLETIONS, EMBEDDINGS, MESSAGES, RERANK, body, whole

AT_ONCE = [
    *(("POST", path) for path in ("/tokenize", "/detokenize", "/v1/messages/count_tokens")),
    *(("POST", path) for path in ("/v1/responses/r/cancel", "/v1/responses/input_tokens")),
    *(("GET", path) for path in ("/v1/responses/r", "/v1/responses/r/input_items")),
    ("GET", "/v1/items?after=a%20b"),
    ("DELETE", "/v1/responses/r"),
]
SEQUENCES = [
    ({"n": 3}, 3),
    ({"n": 1_000}, 1_000),
    ({"prompt": ["a", "b"]}, 2),
    ({"prompt": ["a", "b"], "n": 4}, 8),
    ({"prompt": "a", "best_of": 5}, 5),
    ({"prompt": [[1, 2], [3]]}, 2),
    ({"prompt": [1, 2]}, 1),
    ({"prompt": ["a"]}, 1),
]


@pytest.mark.parametrize(("method", "path"), AT_ONCE)
async def test_it_is_answered_behind_a_generation(kairos, engine, method, path):
    served = await kairos(engine.url, max_num_seqs=1)
    engine.answer = engine.when_released
    generating = [asyncio.create_task(served.chat()) for _ in range(2)]
    await served.facts.seen(Arrived, 2)
    await engine.called(1)
    engine.answer = whole
    asked = {"json": {"model": "tiny", "prompt": "a"}} if method == "POST" else {}
    assert (await served.ask(method, path, **asked)).status == 200
    engine.answer = engine.when_released
    assert not any(each.done() for each in generating)
    assert [call.path for call in engine.calls] == [CHAT, path]
    assert len(served.facts.all(Arrived)) == 2
    engine.release(2)
    assert {(await each).status for each in generating} == {200}


@pytest.mark.parametrize(("asked", "sequences"), SEQUENCES)
async def test_answers_count_as_the_sequences_that_they_are(kairos, engine, asked, sequences):
    served = await kairos(engine.url)
    route = COMPLETIONS if "prompt" in asked else CHAT
    answer = await served.ask("POST", route, json=body(route, max_tokens=10, **asked))
    assert answer.status == 200
    [arrived] = served.facts.all(Arrived)
    assert arrived.request.completion_tokens == 10 * sequences
    assert arrived.request.completion_limit == 10 * sequences


@pytest.mark.parametrize(("asked", "sequences"), SEQUENCES)
async def test_they_take_as_many_of_the_engines_places(kairos, engine, asked, sequences):
    places = 4
    served = await kairos(engine.url, max_num_seqs=places)
    engine.answer = engine.when_released
    route = COMPLETIONS if "prompt" in asked else CHAT
    first = asyncio.create_task(served.ask("POST", route, json=body(route, **asked)))
    await engine.called(1)
    others = [asyncio.create_task(served.chat()) for _ in range(places)]
    await served.facts.seen(Arrived, 1 + places)
    free = max(0, places - sequences)
    await engine.called(1 + free)
    assert served.balancer.waiting == places - free
    engine.release(1 + places)
    assert {(await each).status for each in (first, *others)} == {200}


@pytest.mark.parametrize("route", [CHAT, COMPLETIONS, EMBEDDINGS, MESSAGES, RERANK, "/tokenize"])
async def test_a_kept_connection_that_is_reset_under_the_call_is_replaced_once(
    kairos, engine, route
):
    served = await kairos(engine.url)
    used = set()

    async def answer(request):
        connection = id(request.transport)
        if connection in used:
            request.transport.abort()
            return web.Response()
        used.add(connection)
        return await whole(request)

    engine.answer = answer
    for _ in range(3):
        assert (await served.ask("POST", route, json=body(route))).status == 200
