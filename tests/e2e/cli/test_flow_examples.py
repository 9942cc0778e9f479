"""The flows in `examples/` run: on an engine of a test, on a real model, and on real vLLM."""

import asyncio
import json
import urllib.request

import pytest

from examples import demo
from kairos.cli.demos.engines import start_engines
from kairos.workflows import load_flow
from tests.e2e.cli.flow_runs import answer_to, answering, read_rows, write_rows
from tests.support.workflows.naive import Naive
from tests.support.workflows.runs import RunStore, check_task, new_record, run_task

ROWS = {
    "report_questions.jsonl": [
        {"report": n // 3, "text": f"Report {n // 3}.", "question": f"{n}?", "answer": "yes"}
        for n in range(6)
    ],
    "reports.jsonl": [
        {"report": n, "text": f"Sales of {n}.", "paragraphs": [f"{n}.{i}" for i in range(n + 1)]}
        for n in range(3)
    ],
    "questions.jsonl": [{"question": f"Question {n}?"} for n in range(6)],
    "misconceptions.jsonl": [{"question": f"Question {n}?"} for n in range(3)],
}
FIELDS = ("mathematics", "history", "other")


def says(body):
    prompt = body["messages"][-1]["content"]
    if "Which field" in prompt:
        return json.dumps({"field": FIELDS[int(prompt.split()[1].rstrip("?")) % 3]})
    if "as JSON" in prompt:
        return json.dumps({"figures": [{"what": "sales", "value": prompt.split()[2].rstrip(".")}]})
    return answer_to(body)


@pytest.fixture
def run_example(tmp_path):
    async def run(name, urls, rows):
        path = demo.HERE / name
        loaded = load_flow(path, demo.HERE / "functions.py" if path.suffix != ".py" else None)
        store = RunStore(tmp_path / "kairos")
        out = tmp_path / f"{path.stem}.jsonl"
        record = new_record(store, loaded.declaration, out=str(out), engines=tuple(urls))
        table = write_rows(tmp_path / "rows.jsonl", rows)
        task = check_task(record, loaded.declaration, loaded.functions, table)
        record = await run_task(task, store, pytest.fail, lambda _: None)
        return loaded, record, read_rows(out)

    return run


@pytest.mark.parametrize("name", demo.FLOWS)
async def test_an_example_runs(name, engine, run_example):
    answering(engine, says)
    rows = ROWS[demo.FLOWS[name]]
    _, record, out = await run_example(name, [engine.url], rows)

    assert [row["row"] for row in out] == list(range(len(rows)))
    assert record.figures["failed"] == 0


async def test_of_questions_about_a_report_its_summary_is_made_once(engine, run_example):
    answering(engine, says)
    rows = ROWS["report_questions.jsonl"]
    _, record, _ = await run_example("summarise_and_judge.yaml", [engine.url], rows)

    assert record.figures["calls"] == 2 + 6 + 6


async def test_a_question_is_asked_of_the_expert_of_its_field_alone(engine, run_example):
    answering(engine, says)
    _, record, out = await run_example(
        "classify_and_answer.yaml", [engine.url], ROWS["questions.jsonl"]
    )

    assert [row["field"] for row in out] == [*FIELDS, *FIELDS]
    assert record.figures["calls"] == 12


async def test_figures_are_checked_against_their_text(engine, run_example):
    answering(engine, says)
    _, _, out = await run_example("extract_and_check.yaml", [engine.url], ROWS["reports.jsonl"])

    assert [row["found"] for row in out] == [[True]] * 3


@pytest.mark.real
async def test_examples_run_on_the_real_model(run_example):
    async with start_engines("llama", 2, options=demo.LLAMA) as urls:
        for name in ("classify_and_answer.yaml", "extract_and_check.yaml"):
            _, record, out = await run_example(name, urls, ROWS[demo.FLOWS[name]])
            assert [row["row"] for row in out] == list(range(len(out)))
            assert record.figures["failed"] == 0
            assert record.figures["completion_tokens"] > 0


@pytest.mark.vllm
@pytest.mark.timeout(600)
async def test_e12_on_vllm_comes_out_what_one_call_after_the_other_gives(vllm, run_example):
    rows = ROWS["report_questions.jsonl"] * 4
    loaded, record, out = await run_example("summarise_and_judge.yaml", vllm, rows)

    def ask(messages, params):
        body = {"model": "tiny", "messages": messages, "temperature": 0}
        body["max_tokens"] = params.max_tokens
        request = urllib.request.Request(
            f"{vllm[0]}/v1/chat/completions",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=60) as response:
            return json.load(response)["choices"][0]["message"]["content"]

    naive = await asyncio.to_thread(Naive(loaded.declaration, ask).run, rows)
    assert out == [{"row": row, **values} for (_, row), values in sorted(naive.written.items())]
    assert record.figures["calls"] < len(naive.calls)
