"""Row A5 of the design over real sockets: a list is streamed, and its items go on."""

import asyncio
import json

import pytest
from aiohttp import web

from examples.demo import LLAMA
from kairos.cli.demos.engines import start_engines
from kairos.core import SetupError
from kairos.settings import RetrievalSettings
from kairos.workflows import IssueCall
from tests.e2e.cli.flow_runs import Runs, completion, read_rows
from tests.e2e.flows import invoke, kept_in, put
from tests.support.simulate.standin import StandInSettings, serve
from tests.support.workflows.runs import CallAnswered

QUESTIONS = """
flow: questions
operators:
  row: {kind: input}
  more:
    kind: llm
    prompt: "Ask more than {{ row.q }}"
    retries: 0
    schema: {type: object, properties: {q: {type: array, items: {type: string}}}, required: [q]}
  all:
    kind: map
    over: more.q
    body:
      each: {kind: llm, prompt: "{{ item }}", retries: 0}
    result: each
outputs: {found: all}
"""
ROW = [{"q": "why"}]


def chunk(text=None, *, finish=None, usage=None, **more):
    delta = {} if text is None else {"content": text}
    choices = [] if usage else [{"index": 0, "delta": delta, "finish_reason": finish}]
    return b"data: " + json.dumps({"choices": choices, "usage": usage, **more}).encode() + b"\n\n"


END = [
    chunk(finish="stop"),
    chunk(usage={"prompt_tokens": 9, "completion_tokens": 8}),
    b"data: [DONE]\n\n",
]


class Writer:
    """An engine that writes a list part by part, a part once `turns` allow it, and answers all else
    at once."""

    def __init__(self, engine, *parts):
        self.engine, self.parts, self.turns = engine, parts, asyncio.Semaphore(0)
        self.log, self.lists, self.streamed = [], 0, []
        engine.answer = self.answer

    async def answer(self, request):
        body = json.loads(await request.read())
        prompt = body["messages"][-1]["content"]
        if not prompt.startswith("Ask more"):
            self.log.append(prompt)
            self.turns.release()
            return completion(f"of {prompt}")
        self.lists += 1
        self.streamed.append(body.get("stream", False))
        if not self.streamed[-1]:
            return completion("".join(self.parts))
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for part in self.parts:
            if part is None:
                await self.turns.acquire()
            elif part == "broken":
                request.transport.abort()
                return response
            else:
                await response.write(part if isinstance(part, bytes) else chunk(part))
        self.log.append("whole")
        for part in END:
            await response.write(part)
        return response


@pytest.fixture
def runs(tmp_path, engine):
    return Runs(tmp_path, engine)


async def test_a5_the_first_item_is_asked_before_the_list_has_its_last_token(runs, engine):
    # The second item is written only once the first has been asked.
    writer = Writer(engine, '{"q": ["a b', '", ', None, '"c"', ", ", None, '"d"]}')
    record = await runs.run(QUESTIONS, ROW)
    assert runs.out() == [{"row": 0, "found": ["of a b", "of c", "of d"]}]
    assert writer.log == ["a b", "c", "whole", "d"]
    assert writer.streamed == [True]
    # Tokens are counted as in any other call.
    assert record.figures["completion_tokens"] == 8 + 3 * 2


async def test_a5_without_the_pass_nothing_is_streamed_and_the_answer_is_the_same(runs, engine):
    writer = Writer(engine, '{"q": ["a b", "c"]}')
    await runs.run(QUESTIONS, ROW, passes={"decoding": False})
    assert writer.streamed == [False]
    assert runs.out() == [{"row": 0, "found": ["of a b", "of c"]}]


@pytest.mark.parametrize(
    ("parts", "error"),
    [
        (('{"q": ["a", "b"', None), "the answer is not JSON"),
        (('{"q": ["a"', None, "broken"), "broke off"),
        (('{"q": ["a"', None, b'data: {"error": {"message": "out of memory"}}\n\n'), "broke off"),
        (('{"q": ["a"', None, b"data: {nothing}\n\n"), "malformed event"),
        (('{"q": ["a"', None, "], 7}"), "the answer is not JSON"),
    ],
)
async def test_a5_a_list_that_breaks_fails_its_row_as_without_the_pass(runs, engine, parts, error):
    Writer(engine, *parts)
    record = await runs.run(QUESTIONS, ROW)
    (failed,) = runs.out("out.errors.jsonl")
    assert (failed["row"], failed["operator"]) == (0, "more")
    assert error in failed["error"]
    assert record.figures["failed"] == 1


async def test_an_engine_that_does_not_stream_is_understood(runs, engine):
    async def answer(request):
        prompt = json.loads(await request.read())["messages"][-1]["content"]
        return completion('{"q": ["a"]}' if prompt.startswith("Ask") else f"of {prompt}")

    engine.answer = answer
    await runs.run(QUESTIONS, ROW)
    assert runs.out() == [{"row": 0, "found": ["of a"]}]


async def test_a5_of_a_flow_online_items_go_on_too(kairos, engine, tmp_path):
    writer = Writer(engine, '{"q": ["a b', '", ', None, '"c"', ", ", None, '"d"]}')
    served = await kairos(engine.url, flows=kept_in(tmp_path / "flows"))
    await put(served, QUESTIONS, "questions")
    told = (await invoke(served, {"q": "why"}, "questions")).json()
    assert told["outputs"] == {"found": ["of a b", "of c", "of d"]}
    assert writer.log == ["a b", "c", "whole", "d"]
    assert told["usage"]["completion_tokens"] == 8 + 3 * 2


async def test_a5_of_a_flow_online_a_list_that_breaks_fails_it(kairos, engine, tmp_path):
    Writer(engine, '{"q": ["a"', None, b'data: {"error": {"message": "out of memory"}}\n\n')
    served = await kairos(engine.url, flows=kept_in(tmp_path / "flows"))
    await put(served, QUESTIONS, "questions")
    answer = await invoke(served, {"q": "why"}, "questions")
    assert answer.status == 502, answer.body
    assert answer.error()["message"] == "operator 'more': the answer broke off: out of memory"


OF_A_REAL_MODEL = """
flow: questions
operators:
  row: {kind: input}
  more:
    kind: llm
    prompt: "Ask three other questions about {{ row.about }}, as JSON"
    schema:
      type: object
      properties:
        q:
          type: array
          items: {type: string, minLength: 8, maxLength: 60}
          minItems: 3
          maxItems: 3
      required: [q]
      additionalProperties: false
    max_tokens: 300
  all:
    kind: map
    over: more.q
    body:
      each: {kind: llm, prompt: "{{ item }}", max_tokens: 4, on_cut: keep}
    result: each
outputs: {asked: more.q, found: all}
"""


async def is_asked_early(runs, seen, out, **passes):
    """Whether the first item is asked before the list is whole, of an engine that keeps to a
    schema."""
    seen.clear()
    row = {"about": "rivers"}
    record = await runs.run(OF_A_REAL_MODEL, [row], out, uses_cache=False, passes=passes)
    assert record.figures["failed"] == 0, runs.out(out.replace(".", ".errors."))
    (row,) = runs.out(out)
    assert (len(row["asked"]), len(row["found"])) == (3, 3)
    calls = [each for each in seen if isinstance(each, IssueCall)]
    (more,) = [each for each in calls if each.operator == "more"]
    items = [each for each in calls if each.operator == "each"]
    asked = [each.body["messages"][-1]["content"] for each in items]
    assert asked[0] == row["asked"][0]
    assert set(asked) == set(row["asked"])
    (whole,) = [e for e in seen if isinstance(e, CallAnswered) and e.call == more.call]
    return seen.index(items[0]) < seen.index(whole)


@pytest.mark.real
async def test_a5_of_a_real_model_the_first_item_is_asked_before_the_list_has_its_last_token(
    runs, seen
):
    async with start_engines("llama", 1, options=LLAMA) as (runs.engine.url,):
        assert await is_asked_early(runs, seen, "out.jsonl")
        assert not await is_asked_early(runs, seen, "without.jsonl", decoding=False)


EMBEDDED = """
flow: questions
operators:
  row: {kind: input}
  more:
    kind: llm
    prompt: "Ask more than {{ row.q }}"
    retries: 0
    schema: {type: object, properties: {q: {type: array, items: {type: string}}}, required: [q]}
  vectors: {kind: embed, retries: 0, inputs: {texts: more.q}}
outputs: {found: vectors, texts: more.q}
"""


async def test_a_text_is_embedded_before_the_list_has_its_last_token(runs, engine):
    async with serve(StandInSettings(model="minilm")) as embedder:
        retrieval = RetrievalSettings(embedders=(embedder.url,))
        asked = asyncio.create_task(embedder.until(lambda it: len(it.received) > 0))
        writer = Writer(engine, '{"q": ["a b', '", ', None, '"c"', "]}")
        asked.add_done_callback(lambda _: writer.turns.release())
        await runs.run(EMBEDDED, ROW, retrieval=retrieval)
        texts = [text for each in embedder.received for text in json.loads(each.body)["input"]]
        assert texts == ["a b", "c"]
        assert writer.streamed == [True]
        (ahead,) = runs.out()
        Writer(engine, '{"q": ["a b", "c"]}')
        await runs.run(EMBEDDED, ROW, "plain.jsonl", retrieval=retrieval,
                       passes={"decoding": False}, uses_cache=False)  # fmt: skip
        (plain,) = read_rows(runs.directory / "plain.jsonl")
        assert ahead["found"] == plain["found"]
        assert len(ahead["found"]) == 2


LINES = """
flow: questions
operators:
  row: {kind: input}
  more: {kind: llm, prompt: "Ask more than {{ row.q }}", retries: 0}
  parts: {kind: call, function: lines, purity: pure, partial: true, inputs: {text: more}}
  all:
    kind: map
    over: parts
    body:
      each: {kind: llm, prompt: "{{ item }}", retries: 0}
    result: each
outputs: {found: all}
"""


def lines(text):
    return [each.removeprefix("- ").strip() for each in text.split("\n") if each.strip()]


def broken_by_prefixes(text):
    if not text.endswith("."):
        raise ValueError("it is not whole")
    return lines(text)


def misled_by_prefixes(text):
    return lines(text) if text.endswith(".") else ["wrong", "wronger", "wrongest"]


async def test_a_part_that_a_function_finds_goes_on_before_the_text_has_its_last_token(
    runs, engine
):
    runs.functions.register(lines, purity="pure")
    writer = Writer(engine, "- a b", "\n- c", None, "\n- d", "\n- e.")
    await runs.run(LINES, ROW)
    assert runs.out() == [{"row": 0, "found": ["of a b", "of c", "of d", "of e."]}]
    assert writer.log[0] == "a b"
    assert writer.log.index("a b") < writer.log.index("whole")
    assert sorted(writer.log) == ["a b", "c", "d", "e.", "whole"], "each is asked once"
    assert writer.streamed == [True]


@pytest.mark.parametrize("function", [broken_by_prefixes, misled_by_prefixes])
async def test_what_a_function_makes_of_prefixes_changes_no_value(runs, engine, function):
    runs.functions.register(function, purity="pure", name="lines")
    Writer(engine, "- a b", "\n- c", "\n- d.")
    await runs.run(LINES, ROW)
    assert runs.out() == [{"row": 0, "found": ["of a b", "of c", "of d."]}]


async def test_a_function_that_takes_prefixes_is_pure(runs, engine):
    runs.functions.register(lines, purity="effect")
    with pytest.raises(SetupError, match="takes prefixes is pure"):
        await runs.run(LINES.replace("purity: pure", "purity: effect"), ROW)
