"""Runs on a real Ray: the same tables as in one process, and no call that is asked twice."""

import asyncio
import json
from collections import Counter
from contextlib import asynccontextmanager

import msgspec
import pytest
from aiohttp import web
from hypothesis import assume, given
from hypothesis import strategies as st

from kairos.core import SetupError
from kairos.settings import RetrievalSettings
from kairos.workflows import Functions, RunProcessor
from kairos.workflows.compile.invalid import InvalidFlow
from tests.e2e.embedder import Embedder
from tests.property.workflows.test_flows import FUNCTIONS, ROWS, Drawn, scripted
from tests.ray.ray_runs import CountingEngine, run
from tests.support.examples import examples
from tests.support.workflows.declared import read_yaml
from tests.support.workflows.runs import (
    Embedding,
    Ingest,
    Rerank,
    RunStore,
    Search,
    Stays,
    ValuesLost,
    check_task,
    compile_plan,
    every_operator,
    new_record,
    performers,
    processor_service,
    run_task,
)

pytestmark = [pytest.mark.ray, pytest.mark.timeout(1200)]

TWO = """
flow: two
operators:
  row: {kind: input}
  summary: {kind: llm, prompt: "Summarise {{ row.text }}", max_tokens: 10}
  answer: {kind: llm, prompt: "{{ summary }} {{ row.question }}", max_tokens: 10}
outputs: {summary: summary, answer: answer}
"""
GROUPED = """
flow: grouped
operators:
  row: {kind: input}
  said: {kind: llm, prompt: "{{ row.text }}"}
  by_text: {kind: group, by: "t", inputs: {t: row.text}, value: said}
  sum: {kind: llm, prompt: "Sum {{ by_text.items | join(' ') }}"}
outputs: {text: by_text.key, sum: sum}
"""


def texts(count, distinct):
    return [{"text": f"doc {n * 7 % distinct}", "question": f"q{n}"} for n in range(count)]


def drawn_here(seed, size):
    """Draw a flow in which no row finds what another has put into a collection."""
    declaration = Drawn(seed).whole(size)
    params = [each.params for each in every_operator(declaration.operators)]
    assume(not any(isinstance(each, Ingest | Search) and each.collection for each in params))
    try:
        compile_plan(declaration)
    except InvalidFlow:
        assume(False)
    return declaration


FLOWS = st.builds(drawn_here, st.integers(0, 10**9), st.integers(1, 7))


class DrawnEmbedder(Embedder):
    """Serves the only model that drawn flows name, and counts texts and batches."""

    def __init__(self, delay_s=0.0):
        super().__init__(None, delay_s)
        self.texts, self.sizes = Counter(), []
        self.at_once, self.most_at_once = 0, 0

    async def _models(self, request):
        return web.json_response({"object": "list", "data": [{"id": "m", "object": "model"}]})

    async def _embeddings(self, request):
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            return await super()._embeddings(request)
        finally:
            self.at_once -= 1

    async def _rerank(self, request):
        asked = await request.json()
        words = set(asked["query"].split())
        scores = [len(words & set(passage.split())) for passage in asked["documents"]]
        results = [{"index": at, "relevance_score": score} for at, score in enumerate(scores)]
        return web.json_response({"results": results})

    def _done(self, items):
        self.texts.update(items)
        self.sizes.append(len(items))


@asynccontextmanager
async def served(embedder):
    runner = web.AppRunner(embedder.app())
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def compare(folder, declaration, rows, partitions):
    """Run it in one process and on Ray, and compare what comes out and what was asked."""
    async with CountingEngine(scripted).running() as engine, served(DrawnEmbedder()) as url:
        retrieval = RetrievalSettings(embedders=(url,), rerankers=(url,))
        given_ = {
            "url": engine.url,
            "uses_cache": False,
            "functions": FUNCTIONS,
            "retrieval": retrieval,
        }
        alone = await run(folder, declaration, rows, "alone", **given_)
        asked_alone, again_alone = dict(engine.asked), engine.again()
        for count, results in partitions.items():
            engine.asked.clear()
            on = {"on": "local-ray", "partitions": count, "results": results}
            spread = await run(folder, declaration, rows, f"on-{count}", **given_, **on)
            assert spread.record.state == alone.record.state == "done"
            assert spread.tables == alone.tables
            assert engine.again() <= again_alone, engine.asked
            assert engine.asked.keys() <= asked_alone.keys()


# Bytes of the smallest values of processors that stay with Ray: all do, or large ones.
HELD_FROM = st.sampled_from([1, performers.HELD_FROM])


@examples(30, gate=8)
@given(FLOWS, ROWS, HELD_FROM)
def test_any_flow_gives_the_same_table_on_any_number_of_workers(
    ray, database, tmp_path_factory, declaration, rows, held_from
):
    folder = tmp_path_factory.mktemp("drawn")
    with pytest.MonkeyPatch.context() as changed:
        changed.setattr(performers, "HELD_FROM", held_from)
        asyncio.run(compare(folder, declaration, rows, {1: None, 2: database.url}))


@pytest.mark.long
@examples(30, gate=8)
@given(FLOWS, ROWS)
def test_any_flow_gives_the_same_table_on_four_workers(
    ray, database, tmp_path_factory, declaration, rows
):
    folder = tmp_path_factory.mktemp("drawn")
    asyncio.run(compare(folder, declaration, rows, {4: database.url}))


@pytest.mark.parametrize("flow", [TWO, GROUPED])
@pytest.mark.parametrize("on_database", [False, True])
async def test_what_rows_share_is_asked_once_by_all_partitions(
    ray, database, tmp_path, flow, on_database
):
    rows, declaration = texts(600, 100), read_yaml(flow)
    async with CountingEngine(delay_s=0.02).running() as engine:
        alone = await run(tmp_path, declaration, rows, "alone", engines=(engine.url,))
        asked = dict(engine.asked)
        engine.asked.clear()
        results = database.url if on_database else None
        on = {"on": "local-ray", "partitions": 3, "results": results, "uses_cache": False}
        spread = await run(tmp_path, declaration, rows, "ray", engines=(engine.url,), **on)
        assert spread.tables == alone.tables
        assert dict(engine.asked) == asked
        assert engine.again() == 0
        assert not RunStore(tmp_path / "ray").cache.exists(), "nothing is kept for other runs"
        counted = ("rows", "written", "gathered", "failed", "dropped")
        for name in counted:
            assert spread.record.figures[name] == alone.record.figures[name]


SEARCHED = """
flow: searched
operators:
  row: {kind: input}
  passages: {kind: chunk, inputs: {text: row.text}, size: 3, overlap: 0}
  vectors: {kind: embed, inputs: {texts: passages}}
  kept: {kind: ingest, inputs: {texts: passages, vectors: vectors}}
  query: {kind: embed, inputs: {texts: row.question}}
  found: {kind: search, inputs: {vectors: query, collection: kept}, top_k: 2}
  best: {kind: rerank, inputs: {query: row.question, passages: found}, top_k: 1}
  answer: {kind: llm, prompt: "{{ best }} {{ row.question }}"}
outputs: {best: best, answer: answer}
"""


@pytest.mark.parametrize("held_from", [1, performers.HELD_FROM])
async def test_what_is_embedded_searched_and_ranked_is_the_same_in_partitions(
    ray, tmp_path, held_from, monkeypatch
):
    monkeypatch.setattr(performers, "HELD_FROM", held_from)
    rows = [{"text": f"a b c d{n} e f g{n % 7} h", "question": f"d{n} c"} for n in range(80)]
    declaration = read_yaml(SEARCHED)
    embedder = DrawnEmbedder()
    async with CountingEngine().running() as engine, served(embedder) as url:
        retrieval = RetrievalSettings(embedders=(url,), rerankers=(url,))
        given_ = {"url": engine.url, "retrieval": retrieval, "uses_cache": False}
        alone = await run(tmp_path, declaration, rows, "alone", **given_)
        texts_alone = dict(embedder.texts)
        embedder.texts.clear()
        on = {"on": "local-ray", "partitions": 2}
        spread = await run(tmp_path, declaration, rows, "ray", **given_, **on)
        assert spread.tables == alone.tables
        assert alone.record.figures["written"] == len(rows)
        assert embedder.texts.keys() == texts_alone.keys()


async def test_batches_of_an_embedder_have_texts_of_all_partitions(ray, tmp_path):
    flow = """
flow: embedded
operators:
  row: {kind: input}
  vector: {kind: embed, inputs: {texts: row.text}, batch: 64}
outputs: {vector: vector}
"""
    rows, embedder = texts(2_000, 2_000), DrawnEmbedder(delay_s=0.05)
    async with served(embedder) as url:
        retrieval = RetrievalSettings(embedders=(url,))
        on = {"on": "local-ray", "partitions": 4, "retrieval": retrieval, "uses_cache": False}
        spread = await run(tmp_path, read_yaml(flow), rows, "ray", **on)
    assert spread.record.figures["written"] == len(rows)
    assert sum(embedder.sizes) == len(rows)
    assert embedder.most_at_once == 2, "of one engine, by all partitions together"
    print(f"batches of an embedder: {Counter(embedder.sizes)}")


async def test_values_that_ray_lost_are_made_again_and_those_alone(ray, tmp_path):
    """Lose an object with its owner, and make the calls that the executor makes of it."""
    embedder, vectors = DrawnEmbedder(), "a" * 32
    async with served(embedder) as url:
        settings = RetrievalSettings(embedders=(url,))
        declaration = with_only_model(read_yaml(SEARCHED), "m")
        actors = performers.start_processors(ray, "lost", declaration, settings, {}, None)
        async with processor_service(RetrievalSettings(), {}) as here:
            processors = performers.RayProcessors(actors, here.of(), 1)
            embed = command("embed", vectors, {"texts": ["a", "b"], "batch": 16}, model="m")
            told = {"texts": ["a", "b"], "vectors": f"held:{vectors}"}
            kept = command("ingest", "b" * 32, told, held={vectors: "ray"})
            assert isinstance(await processors.run(embed), Stays)
            assert isinstance(await processors.run(kept), Stays)
            owner = ray.remote(Owner).remote()
            (processors._references[vectors],) = await owner.made.remote()
            ray.kill(owner)
            with pytest.raises(ray.exceptions.RayActorError):
                await owner.made.remote()
            with pytest.raises(ValuesLost) as lost:
                await asyncio.wait_for(repeated(processors, kept), 60)
            assert lost.value.ids == (vectors,)
            await processors.run(embed)
            assert isinstance(await processors.run(kept), Stays)
            assert embedder.texts == {"a": 2, "b": 2}
        performers.stop(ray, actors.values())


async def repeated(processors, command):
    """Make a call again and again: Ray removes the objects of a process a moment after its end."""
    while True:
        await processors.run(command)
        await asyncio.sleep(0.1)


class Owner:
    """Makes an object that ends with the process of this actor."""

    def made(self):
        import ray

        return [ray.put("v" * 1_000_000)]


def with_only_model(declaration, model):
    """Return the operators that rank nothing, with a model for each that embeds."""
    operators = tuple(
        msgspec.structs.replace(each, params=msgspec.structs.replace(each.params, model=model))
        if isinstance(each.params, Embedding)
        else each
        for each in declaration.operators
        if not isinstance(each.params, Rerank)
    )
    return msgspec.structs.replace(declaration, operators=operators)


def command(kind, signature, arguments, model=None, held=None):
    return RunProcessor(
        call=1, stage=0, node="n", row=0, attempt=1, operator="o", signature=signature, delay_us=0,
        kind=kind, model=model, arguments=arguments, idempotency_key=None, depth=0, stays=True,
        held=held or {},
    )  # fmt: skip


async def test_heavy_functions_are_called_in_processes_with_their_cpus(ray, tmp_path):
    flow = """
flow: heavy
operators:
  row: {kind: input}
  made: {kind: call, function: where, purity: pure, cpus: 2, inputs: {n: row.n}}
outputs: {made: made}
"""
    functions = Functions()
    functions.register(where, purity="pure")
    rows = [{"n": n} for n in range(40)]
    on = {"on": "local-ray", "partitions": 4, "functions": functions}
    spread = await run(tmp_path, read_yaml(flow), rows, "ray", **on)
    assert spread.record.figures["written"] == 39
    made = [json.loads(line)["made"] for line in spread.out.splitlines()]
    assert {each["cpus"] for each in made} == {2.0}
    assert b"ValueError: n is 7" in spread.errors
    too_many = read_yaml(flow.replace("cpus: 2", "cpus: 999"))
    with pytest.raises(SetupError, match="no host of the cluster has more than"):
        await run(tmp_path, too_many, rows, "more", **on)


def where(n):
    """Return the CPUs that Ray has given to this call."""
    import ray

    if n == 7:
        raise ValueError("n is 7")
    return {"n": n, "cpus": ray.get_runtime_context().get_assigned_resources()["CPU"]}


async def test_a_budget_is_of_all_partitions_together_and_a_run_goes_on_after_it(
    ray, database, tmp_path
):
    rows, declaration = texts(60, 60), read_yaml(TWO)
    async with CountingEngine().running() as engine:
        given_ = {"url": engine.url, "on": "local-ray", "partitions": 2, "results": database.url}
        store, out = RunStore(tmp_path / "kairos"), tmp_path / "out.jsonl"
        record = new_record(
            store, declaration, out=str(out), max_calls=50, uses_cache=False, **given_
        )
        states, directory = [], None
        while not states or states[-1] == "stopped":
            calls = engine.calls
            task = check_task(record, declaration, Functions(), rows)
            record = await run_task(task, store, print, lambda _: None, directory=directory)
            directory = store.find(record.id)
            states.append(record.state)
            assert engine.calls - calls <= 50
            assert len(states) < 9
        assert states == ["stopped", "stopped", "done"]
        assert engine.again() == 0


async def test_a_run_that_is_stopped_goes_on_from_there(ray, database, tmp_path):
    rows, declaration = texts(300, 300), read_yaml(TWO)
    async with CountingEngine(delay_s=0.05).running() as engine:
        store, out = RunStore(tmp_path / "kairos"), tmp_path / "out.jsonl"
        record = new_record(
            store, declaration, out=str(out), url=engine.url, on="local-ray", partitions=2,
            results=database.url, concurrency=8, uses_cache=False,
        )  # fmt: skip
        running = []
        task = check_task(record, declaration, Functions(), rows)
        first = asyncio.create_task(run_task(task, store, print, running.append))
        async with asyncio.timeout(120):
            while engine.calls < 40:
                await asyncio.sleep(0.05)
        running[0].stop()
        record = await first
        assert record.state == "stopped"
        assert 0 < record.figures["calls"] < 600
        record = await run_task(task, store, print, running.append, directory=store.find(record.id))
        assert record.state == "done"
        assert engine.again() == 0
        assert record.figures["written"] == 300
