"""Say what went wrong: defaults that were taken, calls that wait, and whose words an error has."""

import asyncio
from io import StringIO

import pytest
from aiohttp import web
from rich.console import Console

from kairos.settings import RetrievalSettings
from kairos.workflows import progress_line, show_end
from tests.e2e.cli.flow_runs import Runs, answering
from tests.support.waiting import until
from tests.support.workflows.runs import show_run

ROWS = [{"text": f"t{n}", "texts": ["x", "y"], "n": n} for n in range(4)]
SAYS = "prompt: '{{ row.text }}'"
OF_V = "schema: {type: object, properties: {v: {type: integer}}, required: [v]}"


def refuses(status, body, **headers):
    return lambda _: web.Response(status=status, text=body, headers=headers)


def fails(x):
    raise LookupError(f"no {x}")


HTML, WORDS = "<html>Bad Gateway</html>", '{"error": {"message": "no such parameter: zap"}}'

# How an operator fails for every row: the flow's operators, what the engine says, the operator's
# name and the reason as they are shown.
WAYS = {
    "refused": (f"a: {{kind: llm, {SAYS}, %s}}", refuses(400, WORDS), "a", "answered 400: no such"),
    "broken": (f"a: {{kind: llm, {SAYS}, %s}}", refuses(500, HTML), "a", f"answered 500: {HTML}"),
    "unpaid": (f"a: {{kind: llm, {SAYS}, %s}}", refuses(402, ""), "a", "answered 402: nothing"),
    "a text for an error": (
        f"a: {{kind: llm, {SAYS}, %s}}",
        refuses(400, '{"error": "model is loading"}'),
        "a",
        "model is loading",
    ),
    "no JSON": (f"a: {{kind: llm, {SAYS}, {OF_V}, %s}}", "fine", "a", "is not JSON"),
    "not of its schema": (f"a: {{kind: llm, {SAYS}, {OF_V}, %s}}", '{"w": 1}', "a", "'v'"),
    "no text": (f"a: {{kind: llm, {SAYS}, %s}}", "", "a", "it has no text"),
    "an answer that is none": (f"a: {{kind: llm, {SAYS}, %s}}", refuses(200, "[]"), "a", "JSON"),
    "a function": (
        "a: {kind: call, function: fails, purity: pure, inputs: {x: row.text}, %s}",
        "fine",
        "a",
        "LookupError: no t0",
    ),
    "an embedder": ("a: {kind: embed, inputs: {texts: row.text}, %s}", "fine", "a", "400: no such"),
    "an operator that a pass made parts of": (
        "a: {kind: rerank, top_k: 1, inputs: {query: row.text, passages: row.texts}, %s}",
        "fine",
        "a",
        "400: no such",
    ),
    "in a map": (
        f"a: {{kind: map, over: row.texts, result: b, body: {{b: {{kind: llm, {SAYS}, %s}}}}}}",
        refuses(400, WORDS),
        "a.b",
        "no such parameter",
    ),
}


@pytest.fixture
def runs(tmp_path, engine):
    made = Runs(tmp_path, answering(engine))
    made.functions.register(fails, purity="pure")
    return made


def flow_of(operators, on_error):
    return f"""
flow: t
operators:
  row: {{kind: input}}
  {operators % on_error}
outputs: {{n: row.n, a: a}}
"""


def shown(show, *what):
    said = StringIO()
    show(Console(file=said, width=1000), *what)
    return said.getvalue()


@pytest.mark.parametrize("how", ["default", "skip"])
@pytest.mark.parametrize("way", WAYS)
async def test_h13_rows_that_went_on_without_a_value_are_counted_and_say_why(
    runs, engines, way, how
):
    operators, says, name, why = WAYS[way]
    answering(runs.engine, says if callable(says) else lambda _: says)
    processor = await engines()
    processor.answer = answer_of(refuses(400, WORDS))
    retrieval = RetrievalSettings(embedders=(processor.url,), rerankers=(processor.url,))
    on_error = "on_error: skip" if how == "skip" else "on_error: default, default: {v: 0}"
    flow = flow_of(operators, on_error)
    record = await runs.run(flow, ROWS, retrieval=retrieval)

    assert (record.state, record.figures["written"], record.has_failures) == ("done", 4, False)
    assert record.figures[{"skip": "skipped", "default": "defaulted"}[how]] == 4
    (found,) = record.fallbacks.items()
    assert (found[0], found[1].how, found[1].rows) == (name, how, 4)
    assert why in found[1].error
    for text in (shown(show_end, record), shown(show_run, runs.store.find(record.id), record)):
        assert f"4 rows {'went on without' if how == 'skip' else 'took the default of'}" in text
        assert f"'{name}'" in text
        assert why in text


def answer_of(says):
    async def answer(request):
        await request.read()
        return says(request)

    return answer


async def test_rows_are_counted_once_and_over_all_sessions_of_a_run(runs):
    operators = (
        "m: {kind: map, over: row.texts, result: b, body: {"
        "b: {kind: call, function: fails, purity: pure, inputs: {x: item}, %s}}}\n"
        "  a: {kind: call, function: third, purity: pure, version: '1',"
        " inputs: {x: row.n}, on_error: skip}\n"
        "  c: {kind: call, function: late, purity: pure, version: '1', inputs: {x: row.n}}"
    )
    failing = [True]

    def third(x):
        return 1 // (x % 3)

    def late(x):
        if failing and x > 1:
            raise ValueError("late")
        return x

    for each in (third, late):
        runs.functions.register(each, purity="pure", version="1")
    flow = flow_of(operators, "on_error: default, default: 0").replace("a: a}", "a: a, m: m, c: c}")
    record = await runs.run(flow, ROWS)
    counted = {name: each.rows for name, each in record.fallbacks.items()}
    assert (counted, record.figures["failed"]) == ({"m.b": 2, "a": 1}, 2)

    failing.clear()
    record = await runs.resume(record, flow, ROWS)
    counted = {name: each.rows for name, each in record.fallbacks.items()}
    assert (counted, record.figures["failed"]) == ({"m.b": 4, "a": 2}, 0)
    assert record.fallbacks["a"].row == 0
    assert "ZeroDivisionError" in record.fallbacks["a"].error


REFUSALS = {
    "429": (429, '{"error": {"message": "Rate limit reached"}}', {"Retry-After": "29"}),
    "503": (503, '{"error": {"message": "overloaded"}}', {"Retry-After": "29"}),
    "429 without a reason": (429, "", {"Retry-After": "29"}),
}
ECHO = flow_of(f"a: {{kind: llm, {SAYS}%s}}", "")


@pytest.mark.parametrize("case", REFUSALS)
async def test_h11_a_run_that_waits_says_for_what_and_until_when(runs, case):
    status, body, headers = REFUSALS[case]

    def says(asked):
        return refuses(status, body, **headers)(asked) if "t1" in str(asked) else "fine"

    answering(runs.engine, says)
    began = []
    running = asyncio.create_task(runs.run(ECHO, ROWS, watch=began.append))
    await until(lambda: began and began[0].progress().waits_for)
    (run,) = began
    line = str(progress_line("t-1", run.progress()))
    assert "1 call is refused and retried, next in 2" in line
    assert f"answered {status}" in line
    assert "fails after 3,600 s" in line
    directory = runs.store.find(run.record.id)
    await until(lambda: directory.read().waits_for)
    assert f"answered {status}" in shown(show_run, directory, directory.read())

    run.stop()
    record = await running
    assert (record.state, record.waits_for) == ("stopped", "")
    answering(runs.engine)
    record = await runs.resume(record, ECHO, ROWS)
    assert (record.figures["written"], record.figures["failed"]) == (4, 0)


@pytest.mark.parametrize("status", [429, 503])
async def test_a_run_that_waits_for_an_embedder_says_so_until_it_answers(runs, engines, status):
    embedder, began = await engines(), []
    embedder.answer = answer_of(refuses(status, '{"error": {"message": "too many texts"}}'))
    flow = flow_of("a: {kind: embed, inputs: {texts: row.text}%s}", "")
    retrieval = RetrievalSettings(embedders=(embedder.url,))
    running = asyncio.create_task(
        runs.run(flow, ROWS, watch=began.append, retrieval=retrieval, engines=())
    )
    await until(lambda: began and "retrying processors" in began[0].progress().waits_for)
    said = began[0].progress().waits_for
    assert f"answered {status}: too many texts" in said
    assert "fails after 300 s" in said

    def vectors(request):
        return web.json_response({"data": [{"index": n, "embedding": [1.0]} for n in range(4)]})

    embedder.answer = answer_of(vectors)
    record = await running
    assert (record.figures["written"], began[0].progress().waits_for) == (4, "")


async def test_a_quota_that_no_waiting_ends_fails_its_row_at_once(runs):
    quota = '{"error": {"message": "You exceeded your quota", "code": "insufficient_quota"}}'
    answering(
        runs.engine, lambda asked: refuses(429, quota)(asked) if "t1" in str(asked) else "fine"
    )
    record = await runs.run(ECHO, ROWS)

    assert record.figures["written"] == 3
    (error,) = runs.out("out.errors.jsonl")
    assert (error["row"], error["operator"]) == (1, "a")
    assert error["error"] == "the model's server answered 429: You exceeded your quota"
    assert len(runs.prompts()) == 4


async def test_a_run_whose_engine_fails_all_calls_says_that_it_is_left_alone(runs):
    answering(runs.engine, refuses(401, '{"error": {"message": "wrong key"}}'))
    began = []
    running = asyncio.create_task(runs.run(ECHO, ROWS, watch=began.append))
    await until(lambda: began and "it failed calls" in began[0].progress().waits_for)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_a_run_whose_engine_has_left_says_so(runs):
    runs.engine.answer = runs.engine.when_released
    began = []
    running = asyncio.create_task(runs.run(ECHO, ROWS, watch=began.append))
    await runs.engine.called(1)

    async def gone(_):
        return web.Response(status=500)

    runs.engine.probe = gone
    await until(lambda: "no engine accepts calls" in began[0].progress().waits_for)
    assert "/health answered 500" in began[0].progress().waits_for
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
