"""Row A7 of the design, on real processes: a processor that is killed costs time, and nothing that
was done."""

import asyncio
import re
import socket
import sqlite3
from collections import Counter
from contextlib import ExitStack, closing
from tempfile import TemporaryDirectory

import pytest

from examples.minilm import ALIAS, FOR_VLLM, unpack_minilm, write_minilm
from kairos.settings import RetrievalSettings
from tests.e2e.cli.flow_runs import (
    ROOT,
    answering,
    command,
    kairos_command,
    read_rows,
    write_rows,
)
from tests.e2e.embedder import done_by
from tests.support.processes import READY_S as STARTED_S
from tests.support.processes import Process
from tests.support.vllm import READY_S, needs_vllm
from tests.support.waiting import until

FLOW = """
flow: ask
operators:
  row: {kind: input}
  passages: {kind: chunk, size: 4, overlap: 0, inputs: {text: row.text}}
  vectors: {kind: embed, inputs: {texts: passages}}
  store: {kind: ingest, inputs: {texts: passages, vectors: vectors}}
  asked: {kind: embed, inputs: {texts: row.question}}
  near: {kind: search, top_k: 4, inputs: {vectors: asked, collection: store}}
  best: {kind: rerank, top_k: 2, inputs: {query: row.question, passages: near}}
  answer:
    kind: llm
    prompt: "{% for each in best %}{{ each.text }}{% endfor %}{{ row.question }}"
outputs: {answer: answer, best: best}
"""
ROWS = [
    {"text": " ".join(f"{n}-{word}" for word in range(32)), "question": f"{n}-3 or {n}-17"}
    for n in range(20)
]
ITEMS = len(ROWS) * (32 // 4 + 1 + 4)  # passages and questions embedded, passages ranked
IN_HAND = 16 + 32  # a batch of each sort, answered when nobody was there to hear it


class Embedders:
    """Processes that embed and rank."""

    def __init__(self, directory):
        self._directory, self._stack = directory, ExitStack()
        self._started = 0

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._stack.close()

    async def start(self, port=None, delay_s=0.03):
        if port is None:
            with socket.create_server(("127.0.0.1", 0)) as sock:
                port = sock.getsockname()[1]
        self._started += 1
        name = f"embedder-{self._started}"
        log = self._directory / f"{name}.jsonl"
        started = Process(self._directory, name, port, log, delay_s, module="tests.e2e.embedder")
        self._stack.enter_context(started)
        await until(lambda: _listens(port))
        started.port, started.url, started.done = port, f"http://127.0.0.1:{port}", log
        return started


def _listens(port):
    with socket.socket() as sock:
        return sock.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture
def embedders(tmp_path):
    with Embedders(tmp_path) as started:
        yield started


def retrieval(*engines, rank=True):
    urls = tuple(each.url for each in engines)
    return RetrievalSettings(embedders=urls, rerankers=urls if rank else ())


async def until_done(embedder, items):
    await until(lambda: len(done_by(embedder.done)) >= items)


async def asked_in_vain(port, times=2):
    """Hang up on who asks there, until that has happened so often."""
    asked = asyncio.Semaphore(0)

    def hang_up(_reader, writer):
        writer.close()
        asked.release()

    async with asyncio.timeout(STARTED_S), await asyncio.start_server(hang_up, "127.0.0.1", port):
        for _ in range(times):
            await asked.acquire()


async def until_ranked_on_disk(runs):
    """Return once the only run's journal has the last of what is embedded and ranked."""
    [(run, _)] = [each for each in runs.store.all() if each[1].state == "running"]
    async with asyncio.timeout(STARTED_S):
        with closing(sqlite3.connect(run.path / "journal.sqlite")) as journal:
            ranked = "SELECT count(*) FROM results WHERE node = 'best'"
            while journal.execute(ranked).fetchone() != (len(ROWS),):
                await asyncio.sleep(0.01)


async def undisturbed(runs, embedders):
    one = await embedders.start(delay_s=0)
    record = await runs.run(FLOW, ROWS, "quiet.jsonl", uses_cache=False, retrieval=retrieval(one))
    assert record.figures["written"] == len(ROWS)
    one.kill()
    return runs.out("quiet.jsonl")


async def test_a7_work_of_a_processor_that_is_killed_is_done_by_another_and_no_finished_work_anew(
    runs, embedders
):
    expected = await undisturbed(runs, embedders)
    dies, stays = await embedders.start(), await embedders.start()
    running = asyncio.create_task(
        runs.run(FLOW, ROWS, uses_cache=False, retrieval=retrieval(dies, stays))
    )
    await until_done(dies, 40)
    dies.kill()
    record = await running

    assert record.figures["written"] == len(ROWS)
    assert runs.out() == expected
    before, after = done_by(dies.done), done_by(stays.done)
    assert record.figures["processed"] == 5 * len(ROWS)
    assert 40 <= len(before) < ITEMS - 40, "it was killed in the middle"
    assert set(before) | set(after) == set(done_by(runs.directory / "embedder-1.jsonl"))
    anew = Counter([*before, *after])
    assert sum(anew.values()) - ITEMS <= IN_HAND
    assert max(Counter(after).values()) == 1


async def test_a7_a_run_whose_only_processor_is_killed_goes_on_when_it_is_back(runs, embedders):
    expected = await undisturbed(runs, embedders)
    dies = await embedders.start()
    running = asyncio.create_task(runs.run(FLOW, ROWS, uses_cache=False, retrieval=retrieval(dies)))
    await until_done(dies, 60)
    dies.kill()
    await asked_in_vain(dies.port)
    assert not running.done()
    back = await embedders.start(port=dies.port)
    record = await running

    assert record.figures["written"] == len(ROWS)
    assert runs.out() == expected
    assert len(done_by(dies.done)) + len(done_by(back.done)) - ITEMS <= IN_HAND


async def test_a7_what_was_embedded_and_ranked_before_a_run_was_killed_is_not_done_anew(
    runs, engine, embedders
):
    expected = await undisturbed(runs, embedders)
    engine.calls.clear()
    place = runs.directory
    (place / "flow.yaml").write_text(FLOW)
    write_rows(place / "rows.jsonl", ROWS)
    one = await embedders.start(delay_s=0)
    asleep = answering(engine, delay_s=3600)
    arguments = (
        *("run", "flow.yaml", "--inputs", "rows.jsonl", "--out", "out.jsonl", "--no-cache"),
        *("--engine", f"{engine.url},max_num_seqs={len(ROWS)}"),
        *("--embedder", one.url, "--reranker", one.url),
    )
    async with command(place, *arguments) as started:
        await until_done(one, ITEMS)
        await asleep.until(lambda: len(engine.calls) == len(ROWS))
        await until_ranked_on_disk(runs)
        started.kill()
    one.kill()
    answering(engine)
    back = await embedders.start(port=one.port)
    (run,) = [each for each, _ in runs.store.all() if each.read().state == "running"]
    status, said = await kairos_command(place, "runs", "resume", run.read().id)

    assert status == 0, said
    assert read_rows(place / "out.jsonl") == expected
    assert done_by(back.done) == []


PUT = """
flow: put
operators:
  row: {kind: input}
  passages: {kind: chunk, size: 4, overlap: 0, inputs: {text: row.text}}
  vectors: {kind: embed, inputs: {texts: passages}}
  put: {kind: ingest, collection: docs, inputs: {texts: passages, vectors: vectors}}
outputs: {count: put.count}
"""
LOOK = """
flow: look
operators:
  row: {kind: input}
  vector: {kind: embed, inputs: {texts: row.text}}
  there: {kind: search, collection: docs, top_k: 1000, inputs: {vectors: vector}}
outputs: {there: there}
"""


async def test_a7_a_collection_has_each_passage_once_after_its_run_was_killed_and_resumed(
    runs, embedders
):
    place, one = runs.directory, await embedders.start()
    (place / "flow.yaml").write_text(PUT)
    write_rows(place / "rows.jsonl", ROWS)
    arguments = (
        *("run", "flow.yaml", "--inputs", "rows.jsonl", "--out", "out.jsonl", "--no-cache"),
        *("--engine", runs.engine.url, "--embedder", one.url, "--collections", "kept"),
    )
    async with command(place, *arguments) as started:
        await until_done(one, 80)
        started.kill()
    (run,) = [each for each, _ in runs.store.all()]
    status, said = await kairos_command(place, "runs", "resume", run.read().id)
    assert status == 0, said
    assert [row["count"] for row in read_rows(place / "out.jsonl")] == [8] * len(ROWS)

    kept = RetrievalSettings(embedders=(one.url,), collections=str(place / "kept"))
    await runs.run(LOOK, [{"text": "any"}], "there.jsonl", retrieval=kept)
    (row,) = runs.out("there.jsonl")
    there = sorted(each["text"] for each in row["there"])
    words = [row["text"].split() for row in ROWS]
    assert there == sorted(" ".join(each[at : at + 4]) for each in words for at in range(0, 32, 4))


READ = """
flow: read
operators:
  row: {kind: input}
  passages: {kind: chunk, size: 30, overlap: 5, inputs: {text: row.text}}
  vectors: {kind: embed, inputs: {texts: passages}}
  store: {kind: ingest, inputs: {texts: passages, vectors: vectors}}
  asked: {kind: embed, inputs: {texts: row.question}}
  near: {kind: search, top_k: 1, inputs: {vectors: asked, collection: store}}
  answer: {kind: llm, prompt: "{{ near[0].text }} {{ row.question }}"}
outputs: {answer: answer, near: near}
"""


@pytest.mark.real
async def test_a7_a_real_model_that_embeds_is_killed_and_another_of_it_goes_on(runs, tmp_path):
    write_minilm(tmp_path / "minilm.gguf")
    options = ("--model", tmp_path / "minilm.gguf", "--alias", ALIAS, "--embeds", "--port", 0)
    with (
        Process(tmp_path, "dies", *options, module="kairos.engines.llama") as dies,
        Process(tmp_path, "stays", *options, module="kairos.engines.llama") as stays,
    ):
        await one_dies(runs, dies, stays)


@pytest.mark.vllm
@pytest.mark.timeout(2 * READY_S)
async def test_a7_a_real_vllm_that_embeds_is_killed_and_another_goes_on(runs, tmp_path, scratch):
    needs_vllm()
    unpack_minilm(tmp_path / ALIAS)
    options = ("--model", tmp_path / ALIAS, *FOR_VLLM)
    given = {"environ": {"TMPDIR": scratch}}
    module = "kairos.engines.vllm"
    with (
        Process(tmp_path, "dies", *options, "--number", 1, module=module, **given) as dies,
        Process(tmp_path, "stays", *options, "--number", 2, module=module, **given) as stays,
    ):
        await one_dies(runs, dies, stays)


@pytest.fixture
def scratch():
    """With a short name, since sockets lie in it."""
    with TemporaryDirectory(prefix="a7-") as directory:
        yield directory


async def one_dies(runs, dies, stays):
    """Of two engines of a real model, in the middle of a run."""
    rows = [
        {"text": page.read_text()[at : at + 1_250], "question": "What is learnt of agents?"}
        for page in sorted((ROOT / "docs" / "concepts").glob("*.md"))
        for at in (0, 1_250)
    ]
    for each in (dies, stays):
        await each.until_it_says("ready http", READY_S)
        each.url = re.search(r"ready (http\S+)", each.said)[1]
    engines = retrieval(dies, stays, rank=False)
    await runs.run(READ, rows, "quiet.jsonl", uses_cache=False, retrieval=engines)
    begun = []
    running = asyncio.create_task(
        runs.run(READ, rows, watch=begun.append, uses_cache=False, retrieval=engines)
    )
    await until(lambda: begun and begun[0].progress().figures.get("written"))
    dies.kill()
    assert not running.done()
    record = await running

    assert record.figures["written"] == len(rows)
    assert nearest(runs.out()) == nearest(runs.out("quiet.jsonl"))


def nearest(table):
    return [row["near"][0]["text"] for row in table]
