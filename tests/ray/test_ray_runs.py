"""Runs on a real Ray: the same tables as in one process, and no call that is asked twice."""

import asyncio

import pytest
from aiohttp import web
from hypothesis import assume, given
from hypothesis import strategies as st

from kairos.settings import RetrievalSettings
from kairos.workflows import Functions, RunStore, compile_plan
from kairos.workflows.compile.invalid import InvalidFlow
from tests.e2e.embedder import Embedder
from tests.property.workflows.test_flows import FUNCTIONS, ROWS, Drawn, scripted
from tests.ray.ray_runs import CountingEngine, run
from tests.support.cli.command import check_task, new_record, run_task
from tests.support.examples import examples
from tests.support.workflows.declared import read_yaml

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


class DrawnHere(Drawn):
    """Drawn flows without processors, which would need engines."""

    def retrieve(self, made, depth):
        return self.llm(made, depth)


def drawn_here(seed, size):
    declaration = DrawnHere(seed).whole(size)
    try:
        compile_plan(declaration)
    except InvalidFlow:
        assume(False)
    return declaration


FLOWS = st.builds(drawn_here, st.integers(0, 10**9), st.integers(1, 7))


async def compare(folder, declaration, rows, partitions):
    """Run it in one process and on Ray, and compare what comes out and what was asked."""
    async with CountingEngine(scripted).running() as engine:
        given_ = {"url": engine.url, "uses_cache": False, "functions": FUNCTIONS}
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


@examples(30, gate=8)
@given(FLOWS, ROWS)
def test_any_flow_gives_the_same_table_on_any_number_of_workers(
    ray, database, tmp_path_factory, declaration, rows
):
    folder = tmp_path_factory.mktemp("drawn")
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


async def test_what_is_embedded_searched_and_ranked_is_the_same_in_partitions(ray, tmp_path):
    rows = [{"text": f"a b c d{n} e f g{n % 7} h", "question": f"d{n} c"} for n in range(80)]
    declaration = read_yaml(SEARCHED)
    runner = web.AppRunner(Embedder(tmp_path / "embedded", 0.0).app())
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        retrieval = RetrievalSettings(embedders=(url,), rerankers=(url,))
        async with CountingEngine().running() as engine:
            given_ = {"url": engine.url, "retrieval": retrieval}
            alone = await run(tmp_path, declaration, rows, "alone", **given_)
            on = {"on": "local-ray", "partitions": 2}
            spread = await run(tmp_path, declaration, rows, "ray", **given_, **on)
            assert spread.tables == alone.tables
            assert alone.record.figures["written"] == len(rows)
    finally:
        await runner.cleanup()


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
