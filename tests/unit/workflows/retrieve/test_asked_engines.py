"""What is asked of engines that embed and rank over HTTP, and what of their answers is believed."""

import asyncio
import base64
import struct
from contextlib import asynccontextmanager

import aiohttp
import pytest
from aiohttp import web

from kairos.core import InvalidRequest, SetupError, Unavailable, UpstreamFailed
from kairos.workflows.retrieve import asked_engine, engine_pool
from kairos.workflows.retrieve.asked_engine import AskedEngine
from kairos.workflows.retrieve.engine_pool import EngineGroup
from kairos.workflows.retrieve.vectors import text_of

VECTOR = text_of([1.0, -0.5])


class Upstream:
    """Answers what it is told to."""

    def __init__(self):
        self.status, self.answer, self.models = 200, {}, {"data": [{"id": "minilm"}]}
        self.calls = []
        self.answers = asyncio.Event()  # to who asks for models
        self.answers.set()

    async def handle(self, request):
        self.calls.append((request.path, await request.json(), dict(request.headers)))
        return web.json_response(self.answer, status=self.status)

    async def list(self, request):
        await self.answers.wait()
        if self.models is None:
            raise web.HTTPNotFound
        return web.json_response(self.models)


@pytest.fixture
async def upstream():
    upstream, app = Upstream(), web.Application()
    app.router.add_get("/v1/models", upstream.list)
    app.router.add_post("/v1/{rest}", upstream.handle)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    upstream.url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    yield upstream
    await runner.cleanup()


@asynccontextmanager
async def engine(url):
    async with aiohttp.ClientSession() as session:
        yield AskedEngine(session, url, {"Authorization": "Bearer key"})


def embedded(*vectors):
    return {"data": [{"index": n, "embedding": each} for n, each in enumerate(vectors)]}


async def test_texts_are_embedded_as_base64_with_the_model_and_the_key(upstream):
    upstream.answer = embedded(VECTOR, VECTOR)
    async with engine(upstream.url) as it:
        assert await asked_engine.ask_vectors(it, "minilm", ["a", "b"]) == [VECTOR, VECTOR]

    ((path, body, headers),) = upstream.calls
    assert path == "/v1/embeddings"
    assert body == {"input": ["a", "b"], "encoding_format": "base64", "model": "minilm"}
    assert headers["Authorization"] == "Bearer key"


async def test_an_engine_that_knows_numbers_alone_gives_the_same_vectors_in_any_order(upstream):
    first, second = [1.0, -0.5], [0.25, 2.0]
    upstream.answer = {
        "data": [{"index": 1, "embedding": second}, {"index": 0, "embedding": first}]
    }
    async with engine(upstream.url) as it:
        vectors = await asked_engine.ask_vectors(it, None, ["a", "b"])

    assert vectors == [VECTOR, text_of(second)]
    assert struct.unpack("<2f", base64.b64decode(vectors[0])) == (1.0, -0.5)
    assert "model" not in upstream.calls[0][1]


@pytest.mark.parametrize(
    "answer",
    [
        {},
        {"data": "none"},
        embedded(VECTOR),
        embedded(VECTOR, VECTOR, VECTOR),
        {"data": [{"index": 0, "embedding": VECTOR}] * 2},
        embedded(VECTOR, text_of([1.0])),
        embedded(VECTOR, "no base64"),
        embedded(VECTOR, text_of([1.0, float("nan")])),
        embedded(VECTOR, []),
    ],
)
async def test_what_is_no_answer_to_texts_is_not_believed(upstream, answer):
    upstream.answer = answer
    async with engine(upstream.url) as it:
        with pytest.raises(UpstreamFailed, match="returned no valid vectors"):
            await asked_engine.ask_vectors(it, None, ["a", "b"])


async def test_passages_are_ranked_with_a_call_for_each_query(upstream):
    upstream.answer = {
        "results": [{"index": 1, "relevance_score": 0.5}, {"index": 0, "relevance_score": -1}]
    }
    pairs = [("q", "a"), ("q", "b"), ("r", "a"), ("r", "b")]
    async with engine(upstream.url) as it:
        assert await asked_engine.ask_scores(it, "bge", pairs) == [-1, 0.5, -1, 0.5]

    path, body, _ = upstream.calls[0]
    assert path == "/v1/rerank"
    assert body == {"query": "q", "documents": ["a", "b"], "top_n": 2, "model": "bge"}
    assert [body["query"] for _, body, _ in upstream.calls] == ["q", "r"]


@pytest.mark.parametrize(
    "results",
    [
        None,
        [{"index": 0, "relevance_score": 1}],
        [{"index": 0, "relevance_score": 1}, {"index": 2, "relevance_score": 1}],
        [{"index": 0, "relevance_score": "1"}, {"index": 1, "relevance_score": 1}],
    ],
)
async def test_what_is_no_answer_to_passages_is_not_believed(upstream, results):
    upstream.answer = {"results": results}
    async with engine(upstream.url) as it:
        with pytest.raises(UpstreamFailed, match="returned no valid scores"):
            await asked_engine.ask_scores(it, None, [("q", "a"), ("q", "b")])


@pytest.mark.parametrize(
    ("status", "error"), [(400, InvalidRequest), (503, Unavailable), (500, UpstreamFailed)]
)
async def test_whether_trying_again_makes_sense_is_known_by_the_status(upstream, status, error):
    upstream.status, upstream.answer = status, {"error": {"message": "because"}}
    async with engine(upstream.url) as it:
        with pytest.raises(error, match="because"):
            await asked_engine.ask_vectors(it, None, ["a"])


async def test_an_answer_without_end_is_cut_off(upstream):
    upstream.answer = {"data": "x" * (9 << 20)}
    async with engine(upstream.url) as it:
        with pytest.raises(UpstreamFailed, match="exceeds 8388608 bytes"):
            await asked_engine.ask_vectors(it, None, ["a"])


async def test_a_model_is_asked_of_the_engines_that_serve_it(upstream):
    upstream.answer = embedded(VECTOR)
    async with engine(upstream.url) as it:
        group = EngineGroup([it], asked_engine.ask_vectors)
        await group.look()
        assert group.models == ["minilm"]
        assert await group.pool("minilm", 16).results((1,), 0, ["a"]) == [VECTOR]
        with pytest.raises(InvalidRequest, match="serves the model 'bge'"):
            await group.pool("bge", 16).results((1,), 0, ["a"])
        await group.close()


async def test_an_engine_that_tells_no_models_is_asked_for_any(upstream):
    upstream.models, upstream.answer = None, embedded(VECTOR)
    async with engine(upstream.url) as it:
        group = EngineGroup([it], asked_engine.ask_vectors)
        await group.look()
        assert group.models == []
        assert await group.pool(None, 16).results((1,), 0, ["a"]) == [VECTOR]
        await group.close()

    assert "model" not in upstream.calls[0][1]


async def test_models_that_nobody_asks_for_any_more_make_room_for_others(upstream, monkeypatch):
    monkeypatch.setattr(engine_pool, "_MOST_POOLS", 2)
    upstream.models, upstream.answer = None, embedded(VECTOR)
    async with engine(upstream.url) as it:
        group = EngineGroup([it], asked_engine.ask_vectors)
        await group.look()
        for model in ("a", "b", "c", "d"):
            assert await group.pool(model, 16).results((1,), 0, ["x"]) == [VECTOR]
        await group.close()


async def test_an_engine_that_never_answers_is_not_waited_for(upstream, monkeypatch):
    monkeypatch.setattr(asked_engine, "_LOOK_S", 0.05)
    upstream.answers.clear()
    async with engine(upstream.url) as it:
        with pytest.raises(SetupError, match=r"has not answered in 0\.05 s"):
            await EngineGroup([it], asked_engine.ask_vectors).look()
    upstream.answers.set()


async def test_engines_of_which_none_is_there_are_told_before_anything_begins():
    async with engine("http://127.0.0.1:9/v1") as it:
        with pytest.raises(SetupError, match=r"no connection to http://127\.0\.0\.1:9/v1/models"):
            await EngineGroup([it], asked_engine.ask_vectors).look()
