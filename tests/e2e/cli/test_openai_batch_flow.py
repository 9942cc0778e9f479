"""An OpenAI batch input file, as it is, run by `kairos run` and from Python."""

import asyncio
import json
import re
from pathlib import Path

import pandas as pd
from aiohttp import web
from openai.types.chat import ChatCompletion

from kairos import flow
from kairos.flow import run_flow
from tests.e2e.cli.flow_runs import answer_to, answering, command, kairos_command, read_rows

SYSTEM = {"role": "system", "content": "You are terse."}


def line(number, question):
    messages = [SYSTEM, {"role": "user", "content": question}]
    body = {"model": "tiny", "messages": messages, "max_tokens": 9, "temperature": 0}
    url = "/v1/chat/completions"
    return {"custom_id": f"line-{number}", "method": "POST", "url": url, "body": body}


def write(path, questions):
    lines = [json.dumps(line(*each)) for each in enumerate(questions)]
    path.write_text("\n".join(lines))
    return path


def answered(path):
    return {
        each["custom_id"]: ChatCompletion.construct(**each["response"]["body"]).choices[0]
        for each in read_rows(path)
    }


async def test_a_batch_that_is_interrupted_and_resumed_has_each_answer_and_asks_nothing_twice(
    tmp_path, engine
):
    questions = [f"question {number % 40}" for number in range(60)]  # a third is asked before
    write(tmp_path / "batch.jsonl", questions)
    answering(engine, delay_s=0.05)
    arguments = ("run", "batch.jsonl", "--out", "out.jsonl", "--engine", engine.url)

    async with command(tmp_path, *arguments, "--concurrency", "4") as started:
        await engine.until(lambda: len(engine.calls) >= 12)
        started.interrupt()
        await started.end()
    (run,) = json.loads((await kairos_command(tmp_path, "runs", "list", "--json"))[1])
    status, said = await kairos_command(tmp_path, "runs", "resume", run["id"])

    assert status == 0, said
    assert len(engine.calls) == len({call.body for call in engine.calls}) == 40
    bodies = [line(0, question)["body"] for question in questions]
    assert all(json.loads(call.body) in bodies for call in engine.calls)  # as they stand
    assert list(answered(tmp_path / "out.jsonl")) == [f"line-{number}" for number in range(60)]
    for number, choice in enumerate(answered(tmp_path / "out.jsonl").values()):
        body = line(number, questions[number])["body"]
        assert choice.message.content == answer_to(body)


async def test_a_program_runs_a_batch_in_two_lines_and_what_failed_is_told_by_its_row(
    tmp_path, engine
):
    refusal = web.json_response({"error": {"message": "too long for me"}}, status=400)

    def says(body):
        broken = body["messages"][-1]["content"] == "question 1"
        return refusal if broken else answer_to(body)

    answering(engine, says=says)
    path, out = write(tmp_path / "batch.jsonl", ["question 0", "question 1"]), tmp_path / "o.jsonl"
    made = flow.from_openai_batch(path)
    options = {"engines": [engine.url], "root": tmp_path / "kairos"}
    record = await asyncio.to_thread(run_flow, made, path, out, **options)

    assert record.figures["failed"] == 1
    (done,), (failed,) = read_rows(out), read_rows(tmp_path / "o.errors.jsonl")
    assert (done["id"], done["custom_id"], done["error"]) == ("batch_req_line-0", "line-0", None)
    assert done["response"]["status_code"] == 200
    assert (failed["custom_id"], failed["row"], failed["operator"]) == ("line-1", 1, "answer")
    assert "too long for me" in failed["error"]


async def test_a_line_that_cannot_be_a_row_stops_the_command_before_anything_is_asked(
    tmp_path, engine
):
    path = write(tmp_path / "batch.jsonl", ["question"])
    other = line(1, "question")
    other["body"]["tools"] = []
    path.write_text(path.read_text() + "\n" + json.dumps(other))

    status, said = await kairos_command(
        tmp_path, "run", "batch.jsonl", "--out", "out.jsonl", "--engine", engine.url
    )

    assert status == 1
    assert "batch.jsonl:2: a flow cannot say this" in said
    assert "`tools`" in said
    assert engine.calls == []


async def test_the_recipe_for_pandas_gives_the_frame_with_a_column_more(
    tmp_path, engine, monkeypatch
):
    page = (Path(__file__).parents[3] / "docs" / "how-to" / "bring-your-data.md").read_text()
    recipe = re.search(r"## pandas.*?```python\n(.*?)```", page, re.DOTALL)[1]
    known = {}
    exec(recipe, known)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KAIROS_RUNS", str(tmp_path / "kairos"))
    answering(engine, says=lambda body: body["messages"][0]["content"].upper())
    frame = pd.DataFrame({"text": ["a", "b", "c"]}, index=[5, 6, 7]).drop(6)

    found = await asyncio.to_thread(known["with_replies"], frame, engine.url)

    assert found.to_dict("list") == {"text": ["a", "c"], "reply": ["REPLY:\nA", "REPLY:\nC"]}
