"""Treat an answer that was cut, or has no text, by `on_cut`: never as a whole one."""

import json

import pytest
from aiohttp import web

from tests.e2e.cli.flow_runs import Runs, completion
from tests.e2e.flows import invoke, kept_in, put

FLOW = """
flow: echo
operators:
  row: {kind: input}
  said: {kind: llm, prompt: "{{ row.text }}", max_tokens: 5, on_cut: %s}
outputs: {said: said}
"""
ROWS = [{"text": f"text {n}"} for n in range(3)]

# What the engine answers to row 1: text, other fields of the message, finish_reason; and why not.
CUT = {
    "length": ("so far", {}, "length", "cut at max_tokens"),
    "content_filter": ("so far", {}, "content_filter", "a content filter ended it"),
    "null": (None, {}, "stop", "it has no text (finish_reason stop)"),
    "empty": ("", {}, "stop", "it has no text"),
    "refusal": (None, {"refusal": "I will not"}, "stop", "the model refused: I will not"),
    "tools": (None, {"tool_calls": [{"id": "x"}]}, "tool_calls", "has tool calls and no text"),
    "reasoning": (None, {"reasoning": "Hm"}, "length", "the reasoning used up max_tokens"),
    "reasoning_content": (None, {"reasoning_content": "Hm"}, "length", "the reasoning used"),
    "no reason": (None, {}, None, "it has no text"),
}


def cutting(engine, text, more, reason, enough=10**9):
    """Answer row 1 so, up to a limit of tokens that is enough."""

    async def answer(request):
        body = json.loads(await request.read())
        if "text 1" not in str(body["messages"]) or body["max_tokens"] >= enough:
            return completion("whole")
        message = {"role": "assistant", "content": text, **more}
        choice = {"message": message, "finish_reason": reason, "index": 0}
        usage = {"prompt_tokens": 10, "completion_tokens": 5}
        return web.json_response({"choices": [choice], "usage": usage})

    engine.answer = answer
    return engine


@pytest.fixture
def runs(tmp_path, engine):
    return Runs(tmp_path, engine)


@pytest.mark.parametrize("case", CUT)
async def test_h02_a_row_whose_answer_was_cut_fails_and_says_why(runs, case):
    *given, why = CUT[case]
    cutting(runs.engine, *given)
    record = await runs.run(FLOW % "error", ROWS)

    assert [row["row"] for row in runs.out()] == [0, 2]
    (error,) = runs.out("out.errors.jsonl")
    assert (error["row"], error["operator"]) == (1, "said")
    assert why in error["error"]
    assert record.figures["cut"] == 1


@pytest.mark.parametrize("case", CUT)
async def test_a_cut_answer_that_is_kept_is_counted_and_not_cached(runs, case):
    text, more, reason, _ = CUT[case]
    cutting(runs.engine, text, more, reason)
    record = await runs.run(FLOW % "keep", ROWS)
    assert [row["said"] for row in runs.out()] == ["whole", text or "", "whole"]
    assert record.figures["cut"] == 1

    runs.prompts()
    await runs.run(FLOW % "keep", ROWS, "again.jsonl")
    assert runs.prompts() == ["text 1"]


@pytest.mark.parametrize(("enough", "limits"), [(10, [5, 10]), (20, [5, 10, 20])])
async def test_a_cut_answer_is_asked_for_again_with_a_larger_limit(runs, enough, limits):
    cutting(runs.engine, "so far", {}, "length", enough)
    record = await runs.run(FLOW % "retry", ROWS)

    assert [row["said"] for row in runs.out()] == ["whole"] * 3
    bodies = [json.loads(call.body) for call in runs.engine.calls]
    assert [b["max_tokens"] for b in bodies if "text 1" in str(b["messages"])] == limits
    assert record.figures["cut"] == len(limits) - 1
    runs.prompts()
    await runs.run(FLOW % "error", ROWS, "again.jsonl")
    assert runs.prompts() == [], "a whole answer is kept for whoever asks the same"


async def test_an_answer_that_stays_cut_fails_its_row_after_as_many_retries(runs):
    cutting(runs.engine, "so far", {}, "length")
    await runs.run(FLOW % "retry", ROWS)

    (error,) = runs.out("out.errors.jsonl")
    assert "cut at max_tokens" in error["error"]
    assert len(runs.prompts()) == 2 + 3


async def test_equal_calls_with_another_on_cut_have_each_its_own_end(runs):
    cutting(runs.engine, "so far", {}, "length")
    flow = """
flow: both
operators:
  row: {kind: input}
  kept: {kind: llm, prompt: "{{ row.text }}", max_tokens: 5, on_cut: keep}
  strict: {kind: llm, prompt: "{{ row.text }}", max_tokens: 5, on_error: skip}
outputs: {kept: kept, strict: strict}
"""
    await runs.run(flow, ROWS, uses_cache=False)

    assert [row["kept"] for row in runs.out()] == ["whole", "so far", "whole"]
    assert [row["strict"] for row in runs.out()] == ["whole", None, "whole"]


@pytest.mark.parametrize("reason", ["length", "content_filter", "stop"])
async def test_a_flow_as_a_model_has_the_finish_reason_of_its_last_call(
    kairos, engine, tmp_path, reason
):
    cutting(engine, "so far", {}, reason)
    served = await kairos(engine.url, flows=kept_in(tmp_path / "flows"))
    assert (await put(served, FLOW % "keep", "echo")).status == 200
    told = await served.chat(model="flow/echo", messages=[{"role": "user", "content": "text 1"}])
    assert told.json()["choices"][0]["finish_reason"] == reason
    assert (await invoke(served, {"text": "text 1"}, "echo")).json()["outputs"] == {
        "said": "so far"
    }
