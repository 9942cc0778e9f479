"""Run a flow again whose functions were edited, and within its limit of calls at once."""

import asyncio
import threading

import pytest
from aiohttp import web

from kairos.settings import RetrievalSettings
from kairos.workflows import Functions
from tests.e2e.cli.flow_runs import completion

FLOW = """
flow: t
operators:
  row: {kind: input}
  p: {kind: call, function: f, purity: pure, inputs: {x: row.x}}
outputs: {x: row.x, p: p}
"""
SAYS = """
flow: t
operators:
  row: {kind: input}
  said: {kind: llm, prompt: "{{ row.x }}"}
outputs: {said: said}
"""


def having(function, **given):
    functions = Functions()
    functions.register(function, purity="pure", name="f", **given)
    return functions


def one(x):
    return x + 1


def hundred(x):
    return x + 100


async def test_h07_an_edited_function_is_called_again(runs):
    for number, (function, expected) in enumerate(((one, 2), (hundred, 101), (one, 2))):
        runs.functions = having(function)
        out = f"{number}.jsonl"
        await runs.run(FLOW, [{"x": 1}], out)
        assert runs.out(out)[0]["p"] == expected


async def test_a_version_takes_the_place_of_the_source(runs):
    flow = FLOW.replace("purity: pure", "purity: pure, version: '1'")
    for number, function in enumerate((one, hundred)):
        runs.functions = having(function, version="1")
        await runs.run(flow, [{"x": 1}], f"{number}.jsonl")
        assert runs.out(f"{number}.jsonl")[0]["p"] == 2


async def test_a_run_that_is_resumed_with_an_edited_function_says_so_and_mixes_nothing(runs):
    def fails_at_2(x):
        return 1 // (2 - x)

    runs.functions = having(fails_at_2)
    rows = [{"x": x} for x in range(4)]
    record = await runs.run(FLOW, rows)
    assert (record.figures["written"], record.figures["failed"]) == (3, 1)
    assert runs.notes == []

    runs.functions = having(hundred)
    await runs.resume(record, FLOW, rows)
    assert [row["p"] for row in runs.out()] == [100, 101, 102, 103]
    assert "have changed since this run began" in runs.notes[0]


async def test_a_resumed_run_names_functions_whose_effects_happen_again(runs):
    happened = []
    happens = happened.append  # what a list of the module holds would be part of the function

    def sends(x):
        happens(x)
        return 1 // (2 - x)

    def mended(x):
        happens(x)

    flow, rows = FLOW.replace("pure", "effect"), [{"x": x} for x in range(3)]
    runs.functions = Functions()
    runs.functions.register(sends, purity="effect", name="f")
    record = await runs.run(flow, rows)
    record = await runs.resume(record, flow, rows)
    assert runs.notes == []
    assert sorted(happened) == [0, 1, 2, 2], "what ended stays as it is"

    runs.functions = Functions()
    runs.functions.register(mended, purity="effect", name="f")
    await runs.resume(record, flow, rows)
    assert "what happens by f happens again for them" in runs.notes[0]
    assert sorted(happened) == [0, 0, 1, 1, 2, 2, 2]


@pytest.mark.parametrize("most", [1, 2, 4, 7])
async def test_h08_no_more_calls_are_at_an_engine_than_are_allowed(runs, most):
    at_once, most_seen, full = 0, 0, asyncio.Barrier(most)

    async def answer(_):
        nonlocal at_once, most_seen
        at_once += 1
        most_seen = max(most_seen, at_once)
        async with asyncio.timeout(60):
            await full.wait()
        for _ in range(20):  # in which others may come
            await asyncio.sleep(0)
        at_once -= 1
        return completion("yes")

    runs.engine.answer = answer
    await runs.run(SAYS, [{"x": n} for n in range(6 * most)], concurrency=most)
    assert most_seen == most


ASKED = {
    "embed": "embed, inputs: {texts: row.x}",
    "rerank": "rerank, top_k: 1, inputs: {query: row.x, passages: row.of}",
}


@pytest.mark.parametrize("most", [1, 2, 3])
@pytest.mark.parametrize("kind", ASKED)
async def test_no_more_requests_are_at_processors_than_are_allowed(runs, engines, kind, most):
    at_once, most_seen = 0, 0

    async def answer(request):
        nonlocal at_once, most_seen
        asked = await request.json()
        texts = asked.get("input") or [asked["query"]]
        at_once += 1
        most_seen = max(most_seen, at_once)
        for _ in range(20):
            await asyncio.sleep(0)
        at_once -= 1
        if "7" in texts:
            return web.json_response({"error": {"message": "no"}}, status=400)
        if "query" in asked:
            return web.json_response({"results": [{"index": 0, "relevance_score": 1.0}]})
        data = [{"index": at, "embedding": [1.0]} for at in range(len(texts))]
        return web.json_response({"data": data})

    embedders = [await engines() for _ in range(2)]
    for each in embedders:
        each.answer = answer
    urls = tuple(each.url for each in embedders)
    retrieval = RetrievalSettings(embedders=urls, rerankers=urls)
    flow = FLOW.replace("call, function: f, purity: pure, inputs: {x: row.x}", ASKED[kind])
    rows = [{"x": str(n), "of": [str(n)]} for n in range(200)]
    record = await runs.run(flow, rows, concurrency=most, retrieval=retrieval, engines=())
    assert (record.figures["written"], record.figures["failed"]) == (199, 1)
    assert most_seen <= most


@pytest.mark.parametrize("most", [1, 2, 4, 7, 40])
async def test_h08_no_more_functions_run_than_are_allowed(runs, most):
    at_once, most_seen, lock = 0, 0, threading.Lock()
    full = threading.Barrier(most)

    def f(x):
        nonlocal at_once, most_seen
        with lock:
            at_once += 1
            most_seen = max(most_seen, at_once)
        full.wait(60)
        with lock:
            at_once -= 1
        return x

    runs.functions = having(f)
    await runs.run(FLOW, [{"x": n} for n in range(4 * most)], concurrency=most)
    assert most_seen == most
