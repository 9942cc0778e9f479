"""Row A10 of the design, on real processes: what one processor makes for another goes there without
whoever runs the flow, and what a processor held that is killed is made again."""

import asyncio
from collections import Counter

import pytest

from kairos.settings import RetrievalSettings
from kairos.simulate.processor_answers import vector
from tests.e2e.embedder import done_by
from tests.e2e.flow_runs import Runs, answering
from tests.e2e.processor_hosts import Hosts, figure, until_figure
from tests.e2e.test_flow_processors import FLOW, LOOK, PUT, ROWS

TEXTS = [row["text"].split() for row in ROWS]
PASSAGES = [" ".join(words[at : at + 4]) for words in TEXTS for at in range(0, 32, 4)]


@pytest.fixture
def runs(tmp_path, engine):
    return Runs(tmp_path, answering(engine))


@pytest.fixture
async def hosts(tmp_path):
    async with Hosts(tmp_path) as started:
        yield started


async def in_process(runs, hosts, flow, rows, out, **kept):
    one = await hosts.embedders.start(delay_s=0)
    settings = RetrievalSettings(embedders=(one.url,), rerankers=(one.url,), **kept)
    await runs.run(flow, rows, out, uses_cache=False, retrieval=settings)
    return runs.out(out)


async def test_a10_vectors_go_from_processor_to_processor_and_none_by_whoever_runs_the_flow(
    runs, hosts, tmp_path
):
    kept = {"collections": str(tmp_path / "here")}
    expected = await in_process(runs, hosts, PUT, ROWS, "put-here.jsonl", **kept)
    asked = [{"text": row["question"]} for row in ROWS]
    found = await in_process(runs, hosts, LOOK, asked, "look-here.jsonl", **kept)

    one = await hosts.embedders.start(delay_s=0)
    embeds, keeps = await hosts.start(
        embeds=("--embedder", one.url), keeps=("--collections", tmp_path / "there")
    )
    retrieval = RetrievalSettings(processors=hosts.urls)
    put = await runs.run(PUT, ROWS, "put.jsonl", retrieval=retrieval)
    look = await runs.run(LOOK, asked, "look.jsonl", retrieval=retrieval)

    assert (put.figures["written"], look.figures["written"]) == (len(ROWS), len(ROWS))
    assert runs.out("put.jsonl") == expected
    assert runs.out("look.jsonl") == found
    relays = hosts.relays.values()
    by_coordinator = b"".join(each.of_coordinator for each in relays)
    between = b"".join(each.of_peers for each in relays)
    vectors = [vector(text).encode() for text in (*PASSAGES, *(row["text"] for row in asked))]
    assert PASSAGES[-1].encode() in by_coordinator, "texts do go there"
    assert sum(len(each) * by_coordinator.count(each) for each in vectors) == 0
    assert all(each in between for each in vectors)
    for each in (embeds, keeps):
        assert await figure(each, 'kairos_processor_value_bytes_total{way="answered"}') == 0
    fetched = await figure(keeps, 'kairos_processor_value_bytes_total{way="fetched"}')
    # One that calls of two batches need is fetched by each.
    assert fetched >= await figure(embeds, 'kairos_processor_value_bytes_total{way="kept"}') > 0
    await until_dropped(embeds)


async def test_a10_what_a_killed_processor_held_is_made_again_by_another_and_once(
    runs, hosts, tmp_path
):
    kept = {"collections": str(tmp_path / "here")}
    expected = await in_process(runs, hosts, PUT, ROWS, "here.jsonl", **kept)
    one, two = await hosts.embedders.start(delay_s=0), await hosts.embedders.start(delay_s=0)
    dies, lives, keeps = await hosts.start(
        dies=("--embedder", one.url),
        lives=("--embedder", two.url),
        keeps=("--collections", tmp_path / "there"),
    )
    gate, retrieval = hosts.relays["keeps"].gate, RetrievalSettings(processors=hosts.urls)

    def watch(_):
        gate.clear()  # nothing is ingested for now

    running = asyncio.create_task(runs.run(PUT, ROWS, watch=watch, retrieval=retrieval))
    await until_all_held(dies, lives)
    held = await figure(dies, "kairos_processor_held_values")
    assert 5 <= held <= len(ROWS) - 5, "both have some"
    dies.kill()
    gate.set()
    record = await running

    assert record.figures["written"] == len(ROWS)
    assert record.figures.get("failed", 0) == 0
    assert runs.out() == expected
    assert await figure(keeps, "kairos_processor_lost_values_total") == held
    times = Counter([*done_by(one.done), *done_by(two.done)])
    assert set(times) == set(PASSAGES)
    assert sum(times.values()) == len(PASSAGES) + 8 * held
    assert max(Counter(done_by(two.done)).values()) == 1


async def until_all_held(*processes):
    async with asyncio.timeout(60):
        while sum([await figure(e, "kairos_processor_held_values") for e in processes]) < len(ROWS):
            await asyncio.sleep(0.02)


async def until_dropped(process):
    async with asyncio.timeout(60):
        while await figure(process, "kairos_processor_held_values"):
            await asyncio.sleep(0.02)


async def test_a10_a_run_goes_on_where_a_processor_is_killed_in_the_middle(runs, hosts):
    expected = await in_process(runs, hosts, FLOW, ROWS, "here.jsonl")
    one, two = await hosts.embedders.start(), await hosts.embedders.start()
    dies, lives = await hosts.start(
        dies=("--embedder", one.url, "--reranker", one.url),
        lives=("--embedder", two.url, "--reranker", two.url),
    )
    retrieval = RetrievalSettings(processors=hosts.urls)
    running = asyncio.create_task(runs.run(FLOW, ROWS, uses_cache=False, retrieval=retrieval))
    await until_figure(dies, "kairos_processor_held_values", 3)
    dies.kill()
    record = await running

    assert record.figures["written"] == len(ROWS)
    assert runs.out() == expected
    await until_dropped(lives)
