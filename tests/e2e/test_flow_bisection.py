"""Bisect a batch that an engine fails, so that the row with the wrong text fails alone."""

import asyncio
import json

import pytest
from aiohttp import web

from kairos.settings import RetrievalSettings
from tests.support.simulate.standin import vector

FLOW = """
flow: ask
operators:
  row: {kind: input}
  vectors: {kind: embed, inputs: {texts: row.docs}}
  store: {kind: ingest, inputs: {texts: row.docs, vectors: vectors}}
  q: {kind: embed, inputs: {texts: row.q}}
  near: {kind: search, top_k: 3, inputs: {vectors: q, collection: store}}
outputs: {id: row.id, near: near}
"""
RANKS = """
flow: rank
operators:
  row: {kind: input}
  best: {kind: rerank, top_k: 1, inputs: {query: row.q, passages: row.docs}}
outputs: {id: row.id, best: best}
"""
ROWS = [{"id": n, "docs": [f"c{n}", "b"], "q": f"c{n}"} for n in range(30)]
POISON, BAD = "poison", 7
LIMIT_S = 60


def fails(status, message="json: unsupported value: NaN"):
    async def answer(_request, _texts):
        return web.json_response({"error": {"message": message}}, status=status)

    return answer


def says(of):
    async def answer(_request, texts):
        return web.Response(text=of(texts), content_type="application/json")

    return answer


async def drops(request, _texts):
    request.transport.abort()
    return web.Response()


def listed(texts, **first):
    data = [{"index": at, "embedding": vector(text)} for at, text in enumerate(texts)]
    data[0] |= first
    return json.dumps({"data": data})


# What the engine does with a batch that has the text, and what the table of errors says of it.
WAYS = {
    "500": (fails(500), "500: json: unsupported value: NaN"),
    "502": (fails(502, "bad gateway"), "502: bad gateway"),
    "400": (fails(400, "too long"), "400: too long"),
    "413": (fails(413, "too large"), "413: too large"),
    "drops the connection": (drops, "closed the connection without an answer"),
    "NaN": (says(lambda texts: listed(texts, embedding=[float("nan")])), "not a JSON object"),
    "null": (says(lambda texts: listed(texts, embedding=None)), "no valid vectors"),
    "no vector": (says(lambda texts: listed(texts, embedding="")), "no valid vectors"),
    "one too few": (says(lambda texts: listed(texts, index=9)), "no valid vectors"),
    "no JSON": (says(lambda _: "<html>"), "not a JSON object"),
    "an empty answer": (says(lambda _: ""), "not a JSON object"),
}


def embedding(engine, way):
    async def answer(request):
        asked = json.loads(await request.read())
        texts = asked.get("input") or asked["documents"]
        if POISON in texts:
            return await way(request, texts)
        if "input" in asked:
            return web.Response(text=listed(texts), content_type="application/json")
        results = [{"index": at, "relevance_score": 1.0} for at in range(len(texts))]
        return web.json_response({"results": results})

    engine.answer = answer
    return engine


def with_poison(*numbers):
    return [row | {"docs": [POISON, "b"]} if row["id"] in numbers else row for row in ROWS]


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("way", WAYS)
async def test_h05_a_text_that_an_engine_fails_fails_its_row_alone(runs, engines, way, count):
    does, why = WAYS[way]
    embedders = [embedding(await engines(), does) for _ in range(count)]
    urls = tuple(each.url for each in embedders)
    async with asyncio.timeout(LIMIT_S):
        record = await runs.run(FLOW, with_poison(BAD), retrieval=RetrievalSettings(embedders=urls))

    assert record.figures["written"] == len(ROWS) - 1
    (error,) = runs.out("out.errors.jsonl")
    assert (error["row"], error["operator"]) == (BAD, "vectors"), error
    assert why in error["error"]
    assert sum(len(each.calls) for each in embedders) < 100, "it was not asked again and again"


@pytest.mark.parametrize("way", ["500", "400", "drops the connection"])
async def test_of_rows_to_rank_the_one_that_an_engine_fails_fails_alone(runs, engines, way):
    does, _ = WAYS[way]
    ranker = embedding(await engines(), does)
    async with asyncio.timeout(LIMIT_S):
        await runs.run(
            RANKS, with_poison(BAD), retrieval=RetrievalSettings(rerankers=(ranker.url,))
        )

    assert [error["row"] for error in runs.out("out.errors.jsonl")] == [BAD]
    assert len(runs.out()) == len(ROWS) - 1


async def test_many_wrong_texts_fail_their_rows_and_no_others(runs, engines):
    bad = [3, 4, 5, 11, 20, 29]
    embedder = embedding(await engines(), fails(500))
    async with asyncio.timeout(LIMIT_S):
        await runs.run(
            FLOW, with_poison(*bad), retrieval=RetrievalSettings(embedders=(embedder.url,))
        )

    assert [error["row"] for error in runs.out("out.errors.jsonl")] == bad
    assert len(runs.out()) == len(ROWS) - len(bad)
