"""`kairos profile`, which runs a few rows for real."""

import json

import pytest
from aiohttp import web

from tests.e2e.cli.flow_runs import answering, kairos_command, write_rows
from tests.support.simulate.standin import StandInSettings, serve

FLOW = """
flow: chain
operators:
  row: {kind: input}
  first: {kind: llm, prompt: "first {{ row.text }}"}
  second: {kind: llm, prompt: "second {{ first }}"}
outputs: {second: second}
"""


async def test_it_learns_from_real_calls_and_keeps_nothing_else(tmp_path, engine):
    (tmp_path / "flow.yaml").write_text(FLOW)
    write_rows(tmp_path / "rows.jsonl", [{"text": f"text {n}"} for n in range(50)])
    answering(engine)
    before = sorted(tmp_path.iterdir())
    words = ("profile", "flow.yaml", "--inputs", "rows.jsonl", "--rows", "7")
    named = f"{engine.url},max_num_seqs=4"
    status, said = await kairos_command(tmp_path, *words, "--engine", named, fresh=True)
    assert status == 0, said
    found = json.loads((tmp_path / "flow.profile.json").read_text())
    assert found["rows"] == 7
    for each in found["operators"].values():
        assert each["calls"] == 7
        assert each["prompt_tokens"]["mean"] == 10
        assert each["completion_tokens"]["mean"] == 2
    assert sorted(tmp_path.iterdir()) == sorted([*before, tmp_path / "flow.profile.json"])


CONTEXTS = """
flow: contexts
defaults: {max_tokens: 4, on_cut: keep}
operators:
  row: {kind: input}
  first: {kind: llm, prompt: "{{ row.text }} What is it?"}
  second: {kind: llm, prompt: "{{ row.text }} And after {{ first }}?"}
outputs: {second: second}
"""


async def test_factors_of_a_placement_are_measured_where_engines_report_and_are_several(
    tmp_path, engines
):
    (tmp_path / "flow.yaml").write_text(CONTEXTS)
    write_rows(tmp_path / "rows.jsonl", [{"text": f"text {n} " * 200} for n in range(20)])
    usage = {"prompt_tokens": 1_000, "completion_tokens": 4}
    usage["prompt_tokens_details"] = {"cached_tokens": 480}
    message = {"role": "assistant", "content": "so"}
    said = {"choices": [{"message": message, "finish_reason": "stop"}], "usage": usage}
    pool = []
    for _ in range(2):
        engine = answering(await engines(), lambda _: web.json_response(said))
        pool += ["--engine", engine.url]
    words = ("profile", "flow.yaml", "--inputs", "rows.jsonl", "--rows", "9")
    status, shown = await kairos_command(tmp_path, *words, *pool, fresh=True)
    assert status == 0, shown
    found = json.loads((tmp_path / "flow.profile.json").read_text())
    # Of the second prompt 500 tokens of 511 are taken to be the text; of 1,000 there were 480.
    assert found["cost"]["reuse"] == pytest.approx(480 / (1_000 * 500 / 511), abs=0.01)
    assert 0 <= found["cost"]["sharing"] <= 1
    assert "factors of a placement's cost: reuse 0.49, sharing" in shown


async def test_who_performs_the_calls_must_be_said_once(tmp_path):
    (tmp_path / "flow.yaml").write_text(FLOW)
    write_rows(tmp_path / "rows.jsonl", [{"text": "a"}])
    words = ("profile", "flow.yaml", "--inputs", "rows.jsonl")
    for more in ((), ("--url", "http://localhost:1", "--simulate", "a40-llama3-8b")):
        status, said = await kairos_command(tmp_path, *words, *more)
        assert status == 1
        assert "name who performs the calls" in said
        assert ("--engine" in said, "--url" in said) == (True, True)


async def test_a_run_says_what_was_expected_beside_what_it_came_to(tmp_path, engine):
    (tmp_path / "flow.yaml").write_text(FLOW)
    write_rows(tmp_path / "rows.jsonl", [{"text": f"text {n}"} for n in range(50)])
    answering(engine)
    pool = ("--engine", f"{engine.url},max_num_seqs=4")
    table = ("flow.yaml", "--inputs", "rows.jsonl")
    run = ("run", *table, "--out", "out.jsonl", *pool, "--engine-profile", "cpu-tiny")
    status, said = await kairos_command(tmp_path, *run)
    assert status == 1
    assert "flow.profile.json" in said
    assert (await kairos_command(tmp_path, "profile", *table, *pool))[0] == 0
    status, said = await kairos_command(tmp_path, *run)
    assert status == 0, said
    assert "expected: " in said
    assert "calls 100, were 100; prompt tokens 999, were 1,000" in said
    name = json.loads((await kairos_command(tmp_path, "runs", "list", "--json"))[1])[0]["id"]
    status, said = await kairos_command(tmp_path, "runs", "show", name)
    assert "calls 100, were 100" in " ".join(said.split())
    status, said = await kairos_command(
        tmp_path, *run[:6], "--url", engine.url, "--engine-profile", "cpu-tiny"
    )
    assert "goes with --engine" in said


INDEX = """
flow: index
operators:
  row: {kind: input}
  vectors: {kind: embed, inputs: {texts: row.passages}}
  store: {kind: ingest, collection: docs, inputs: {texts: row.passages, vectors: vectors}}
outputs: {count: store.count}
"""


async def test_batches_are_measured_and_used_by_plans_and_runs(tmp_path):
    async with serve(StandInSettings(model="minilm")) as embedder:
        (tmp_path / "flow.yaml").write_text(INDEX)
        passages = [f"passage {number}" for number in range(300)]
        write_rows(tmp_path / "rows.jsonl", [{"passages": passages}])
        kept = ("--embedder", embedder.url, "--collections", "kept")
        table = ("flow.yaml", "--inputs", "rows.jsonl")
        status, said = await kairos_command(tmp_path, "profile", *table, *kept)
        assert status == 0, said
        path = tmp_path / "flow.profile.json"
        found = json.loads(path.read_text())
        assert set(found["batches"]) == {"embed:minilm", "ingest"}
        assert "embed:minilm: " in said
        for each in found["batches"].values():
            assert str(each["efficient"]) in each["latency_us"]
        found["batches"]["embed:minilm"]["efficient"] = 40
        found["batches"]["ingest"]["efficient"] = 100
        path.write_text(json.dumps(found))
        embedder.received.clear()
        status, said = await kairos_command(tmp_path, "plan", *table)
        assert "vectors_part: embed" in said
        assert "40 at a time" in said
        status, said = await kairos_command(
            tmp_path, "run", *table, "--out", "out.jsonl", *kept, "--no-cache"
        )
        assert status == 0, said
        sizes = [len(json.loads(seen.body)["input"]) for seen in embedder.received]
        assert sorted(sizes, reverse=True) == [40] * 7 + [20]
        assert json.loads((tmp_path / "out.jsonl").read_text())["count"] == 300
