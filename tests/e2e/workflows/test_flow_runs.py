"""Declared workflows over real sockets, in the test's loop."""

import asyncio
import json
import threading
from collections import Counter

import pyarrow as pa
import pytest
from aiohttp import web

from kairos.core import Arrived, SetupError
from kairos.flow import Flow, run_flow
from kairos.workflows.declare.yaml_file import read_yaml
from kairos.workflows.run import driver
from kairos.workflows.run.journal import RunJournal
from kairos.workflows.run.rows import ROW_BYTES
from tests.e2e.cli.flow_runs import Runs, answer_to, answering, read_rows
from tests.support.waiting import until
from tests.support.workflows.naive import Naive

SUMMARIES = """
flow: summaries
operators:
  row: {kind: input}
  summary: {kind: llm, prompt: "Summarise {{ row.text }}", max_tokens: 10}
  answer: {kind: llm, prompt: "{{ summary }} {{ row.question }}", max_tokens: 10}
outputs: {summary: summary, answer: answer}
"""
ECHO = """
flow: echo
operators:
  row: {kind: input}
  said: {kind: llm, prompt: "{{ row.text }}", retries: 0}
outputs: {said: said}
"""


def texts(count):
    return [{"text": f"text {n}"} for n in range(count)]


def questions(count, *, contexts):
    return [{"text": f"report {n % contexts}", "question": f"question {n}"} for n in range(count)]


def naive(flow, rows, says=answer_to):
    made = Naive(read_yaml(flow), lambda messages, _: says({"messages": messages})).run(rows)
    return [{"row": row, **values} for (_, row), values in sorted(made.written.items())]


async def test_e12_what_comes_out_is_what_one_call_after_the_other_gives(runs):
    rows = questions(60, contexts=7)
    record = await runs.run(SUMMARIES, rows)

    assert runs.out() == naive(SUMMARIES, rows)
    assert record.state == "done"
    assert (record.figures["rows"], record.figures["written"]) == (60, 60)
    assert not (runs.directory / "out.errors.jsonl").exists()


async def test_e3_rows_that_share_a_context_share_its_calls(runs):
    record = await runs.run(SUMMARIES, questions(600, contexts=100))

    asked = Counter(runs.prompts())
    assert set(asked.values()) == {1}
    assert sum(prompt.startswith("Summarise") for prompt in asked) == 100
    assert len(asked) == 700
    assert record.figures["merged"] == 500
    assert record.figures["calls"] == 700


async def test_e4_a_second_run_over_unchanged_rows_makes_no_call(runs):
    rows = questions(30, contexts=5)
    await runs.run(SUMMARIES, rows, "first.jsonl")
    runs.prompts()
    record = await runs.run(SUMMARIES, rows, "second.jsonl")

    assert runs.prompts() == []
    assert runs.out("second.jsonl") == runs.out("first.jsonl")
    assert record.figures["fetched"] > 0
    assert "calls" not in record.figures
    await runs.run(SUMMARIES, rows, "third.jsonl", uses_cache=False)
    assert len(runs.prompts()) == 35


async def test_e4_an_edited_operator_runs_what_depends_on_it_alone(runs):
    rows = questions(30, contexts=5)
    await runs.run(SUMMARIES, rows, "first.jsonl")
    runs.prompts()
    await runs.run(SUMMARIES.replace("{{ summary }} ", "{{ summary }}: "), rows, "second.jsonl")

    prompts = runs.prompts()
    assert len(prompts) == 30
    assert not any(prompt.startswith("Summarise") for prompt in prompts)


async def test_results_of_another_model_or_revision_do_not_count(runs):
    runs.engine.models = ["one", "other"]
    for fields, calls in (
        ({"model": "one"}, 5),
        ({"model": "one"}, 0),
        ({"model": "other"}, 5),
        ({"model": "one", "revision": "2"}, 5),
    ):
        runs.engine.calls.clear()
        await runs.run(ECHO, texts(5), f"{sorted(fields.items())}{calls}.jsonl", **fields)
        assert len(runs.engine.calls) == calls
        asked = {json.loads(call.body)["model"] for call in runs.engine.calls}
        assert asked in ({fields["model"]}, set())


async def test_rows_that_cannot_be_read_fail_alone(runs, tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'{"text": "one"}\n{"text": "' + b"x" * ROW_BYTES + b'"}\n{"text\n{}\n')
    record = await runs.run(ECHO, path)

    assert [row["row"] for row in runs.out()] == [0]
    errors = {each["row"]: each["error"] for each in runs.out("out.errors.jsonl")}
    assert list(errors) == [1, 2, 3]
    assert "larger than 10 MiB" in errors[1]
    assert "line 3 is not a JSON object" in errors[2]
    assert "text" in errors[3]
    assert record.figures["failed"] == 3
    assert len(runs.prompts()) == 1


async def test_resuming_tries_failed_rows_again_and_writes_the_tables_anew(runs):
    down = web.json_response({"error": {"message": "not today"}}, status=400)
    answering(runs.engine, lambda body: down if "text 3" in str(body) else answer_to(body))
    record = await runs.run(ECHO, texts(6))
    runs.prompts()
    answering(runs.engine)
    record = await runs.resume(record, ECHO, texts(6))

    assert runs.prompts() == ["text 3"]
    assert [row["row"] for row in runs.out()] == list(range(6))
    assert not (runs.directory / "out.errors.jsonl").exists()
    assert (record.figures["failed"], record.figures["calls"]) == (0, 7)


async def test_resuming_takes_no_table_that_somebody_has_changed(runs):
    record = await runs.run(ECHO, texts(2))
    (runs.directory / "out.jsonl").write_text("mine now\n")

    with pytest.raises(SetupError, match="exists: name another --out"):
        await runs.resume(record, ECHO, texts(2))


async def test_resuming_with_edited_rows_computes_these_alone(runs):
    record = await runs.run(ECHO, texts(6), uses_cache=False)
    runs.prompts()
    rows = texts(7)
    rows[2] = {"text": "edited"}
    await runs.resume(record, ECHO, rows)

    assert sorted(runs.prompts()) == ["edited", "text 6"]
    assert [row["row"] for row in runs.out()] == list(range(7))
    await runs.resume(runs.store.find(record.id).read(), ECHO, rows[:3])
    assert [row["row"] for row in runs.out()] == [0, 1, 2]


async def test_a_run_that_is_stopped_finishes_what_is_in_flight_and_is_resumed(runs):
    runs.engine.answer = runs.engine.when_released
    answer = answering(runs.engine).answer
    began = []

    async def held(request):
        await runs.engine.turns.acquire()
        return await answer(request)

    runs.engine.answer = held
    running = asyncio.create_task(runs.run(ECHO, texts(50), concurrency=8, watch=began.append))
    await runs.engine.called(8)
    (run,) = began
    run.stop()
    runs.engine.release(100)
    record = await running

    assert record.state == "stopped"
    done = record.figures["written"]
    assert 8 <= done < 50
    assert len(runs.engine.calls) == done, "nothing was begun any more"
    assert not (runs.directory / "out.jsonl").exists()
    answering(runs.engine)
    record = await runs.resume(record, ECHO, texts(50))
    assert record.state == "done"
    assert runs.out() == naive(ECHO, texts(50))
    assert len(runs.engine.calls) == 50, "nothing was done twice"


async def test_a_budget_stops_a_run_that_is_resumed_with_more(runs):
    record = await runs.run(ECHO, texts(30), max_calls=10)

    assert (record.state, len(runs.prompts())) == ("stopped", 10)
    assert "--max-calls" in record.detail
    record = await runs.resume(record, ECHO, texts(30), max_calls=None)
    assert record.state == "done"
    assert len(runs.prompts()) == 20


GROUPS = """
flow: groups
operators:
  row: {kind: input}
  said: {kind: llm, prompt: "{{ row.text }}"}
  kinds: {kind: group, by: row.kind, value: said}
  all: {kind: llm, prompt: "{{ kinds.key }}: {{ kinds['items'] | join(', ') }}"}
outputs: {kind: kinds.key, all: all}
"""


async def test_groups_come_after_all_rows_in_the_order_of_their_first(runs):
    rows = [{"text": f"t{n}", "kind": f"k{n * 7 % 3}"} for n in range(20)]
    record = await runs.run(GROUPS, rows)

    assert [row["kind"] for row in runs.out()] == ["k0", "k1", "k2"]
    said = {
        f"k{kind}": [
            answer_to({"messages": [{"content": row["text"]}]})
            for row in rows
            if row["kind"] == f"k{kind}"
        ]
        for kind in range(3)
    }
    for row in runs.out():
        prompt = f"{row['kind']}: {', '.join(said[row['kind']])}"
        assert row["all"] == answer_to({"messages": [{"content": prompt}]})
    assert record.figures["gathered"] == 20
    runs.prompts()
    rows[0] = {"text": "edited", "kind": "k0"}
    await runs.resume(record, GROUPS, rows)
    prompts = runs.prompts()
    assert len(prompts) == 2, "the row, and its group"
    assert "edited" in prompts


CALLS = """
flow: calls
operators:
  row: {kind: input}
  made:
    kind: call
    function: make
    purity: effect
    inputs: {text: row.text}
outputs: {made: made}
"""


async def test_functions_run_beside_the_loop_with_a_key_of_their_own(runs):
    keys, threads = [], set()

    def make(text, idempotency_key):
        keys.append(idempotency_key)
        threads.add(threading.current_thread())
        if text == "text 2":
            raise LookupError("nothing is known of it")
        return {"made of": text}

    runs.functions.effect(make)
    await runs.run(CALLS, texts(4))

    assert [row["made"] for row in runs.out()] == [{"made of": f"text {n}"} for n in (0, 1, 3)]
    (error,) = runs.out("out.errors.jsonl")
    assert error["error"] == "LookupError: nothing is known of it"
    assert len(set(keys)) == 4
    assert threading.main_thread() not in threads


async def test_a_running_kairos_knows_rows_as_workflows_and_operators_as_agents(runs, kairos):
    gateway = await kairos(runs.engine.url)
    record = await runs.run(SUMMARIES, questions(4, contexts=4), engines=(), url=gateway.url)

    requests = [fact.request for fact in gateway.facts.all(Arrived)]
    assert {request.app for request in requests} == {"summaries"}
    assert {request.service_class for request in requests} == {"batch"}
    assert {(r.workflow_id, r.agent) for r in requests} == {
        (f"{record.id}/{row}", agent) for row in range(4) for agent in ("summary", "answer")
    }
    assert {request.id for request in requests} == {
        f"{record.id}/{node}/{row}/1" for row in range(4) for node in ("summary", "answer")
    }
    view = await gateway.ask("GET", f"/v1/workflows/{record.id}/0")
    assert [call["agent"] for call in view.json()["calls"]] == ["summary", "answer"]


@pytest.mark.parametrize(("bound", "most"), [("BACKLOG", 20), ("BACKLOG_BYTES", 20_000)])
async def test_while_the_disk_is_full_the_run_waits_and_then_goes_on(
    runs, monkeypatch, bound, most
):
    monkeypatch.setattr(driver, bound, most)
    monkeypatch.setattr("kairos.host.group_commit.RETRY_S", 0.05)
    journals, tries = [], []
    opened = RunJournal.__init__

    def limited(self, *arguments, **options):
        opened(self, *arguments, **options)
        self._commit._connection.execute("PRAGMA max_page_count = 30")
        self._commit._connection.set_trace_callback(
            lambda statement: tries.append(1) if statement.startswith("BEGIN") else None
        )
        journals.append(self)

    monkeypatch.setattr(RunJournal, "__init__", limited)
    rows = texts(300)

    def at_length(body):
        return answer_to(body) + " and so on" * 100

    answering(runs.engine, at_length)
    running = asyncio.create_task(runs.run(ECHO, rows, concurrency=4, uses_cache=False))
    while not runs.notes:
        assert not running.done(), running
        await asyncio.sleep(0.01)

    async def until_tried_again():
        tried = len(tries)
        await until(lambda: len(tries) >= tried + 10)

    assert "waiting: database or disk is full" in runs.notes[0]
    await until_tried_again()
    asked = len(runs.engine.calls)
    await until_tried_again()
    assert len(runs.engine.calls) == asked < 300, "nothing more is asked meanwhile"
    journals[0]._commit._connection.execute("PRAGMA max_page_count = 100000")
    await running

    assert runs.notes[1] == "the disk has space again: continuing"
    assert runs.out() == naive(ECHO, rows, at_length)
    assert len(runs.engine.calls) == 300


async def test_rows_may_come_from_any_table_and_go_to_any(runs):
    rows = texts(20)
    for source in (pa.Table.from_pylist(rows), rows):
        for suffix in ("parquet", "csv", "arrow"):
            out = f"{len(runs.engine.calls)}-{type(source).__name__}.{suffix}"
            await runs.run(ECHO, source, out)
            assert [row["said"] for row in read_rows(runs.directory / out)] == [
                row["said"] for row in naive(ECHO, rows)
            ]


async def test_a_program_runs_a_flow_that_it_declares_and_goes_on_with_it(runs):
    declared = Flow("echo")
    row = declared.input("row")
    declared.output("said", declared.llm("said", "{{ row.text }}", row=row))

    def run(**fields):
        out, root = runs.directory / "out.jsonl", runs.directory / "kairos"
        engines = [runs.engine.url]
        return run_flow(declared, texts(20), out, engines=engines, root=root, **fields)

    record = await asyncio.to_thread(run, max_calls=5)
    assert (record.state, len(runs.prompts())) == ("stopped", 5)
    record = await asyncio.to_thread(run, resume=record.id)

    assert (record.state, len(runs.prompts())) == ("done", 15)
    assert record.figures["calls"] == 20
    assert runs.out() == naive(ECHO, texts(20))


EMBEDS = ECHO.replace(
    "outputs: {said: said}",
    "  vector: {kind: embed, inputs: {texts: said}}\noutputs: {vector: vector}",
)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"model": "nope"}, "no engine serves the model 'nope'; served: one, other"),
        ({}, "there are one, other: choose one with --model"),
        ({"out": "missing/out.jsonl"}, "there is no directory"),
        ({"out": "out.docx"}, "is not a known format"),
        ({"engines": ()}, "name who performs the calls"),
        ({"rows": [{"n": 1}]}, "no column 'text', which the flow needs; it has 'n'"),
        ({"rows": "missing.jsonl"}, "missing.jsonl: cannot be read"),
        ({"flow": CALLS, "rows": texts(1)}, "no function 'make' is registered"),
        ({"flow": EMBEDS, "model": "one"}, r"operator 'vector' is of kind embed.*--embedder URL"),
    ],
)
async def test_what_cannot_run_is_refused_before_anything_is_spent(runs, fields, says):
    runs.engine.models = ["one", "other"]
    given = {"flow": ECHO, "rows": texts(1)} | fields
    with pytest.raises(SetupError, match=says):
        await runs.run(**given)

    assert runs.engine.calls == []
    assert runs.store.all() == []


async def test_an_engine_that_does_not_answer_is_named(runs, unused_port, monkeypatch):
    monkeypatch.setattr("kairos.cli.run_engines.JOIN_S", 0.5)

    with pytest.raises(SetupError, match=rf"no engine can be used: 127.0.0.1:{unused_port}: "):
        await runs.run(ECHO, texts(1), engines=(f"http://127.0.0.1:{unused_port}",))


JSON_FLOW = """
flow: verdicts
operators:
  row: {kind: input}
  verdict:
    kind: llm
    prompt: "{{ row.text }}"
    parse: PARSE
    schema: {type: object, properties: {n: {type: integer}}, required: [n]}
outputs: {n: verdict.n}
"""


async def test_answers_that_were_paid_for_are_read_again_when_a_flow_becomes_lenient(
    tmp_path, engine
):
    said = {
        "plain": '{"n": 1}',
        "fence": '```json\n{"n": 2}\n```',
        "thought": '<think>{"n": 9}</think>{"n": 3}',
        "prose": 'It is {"n": 4}.',
        "none": "I cannot say.",
    }
    answering(engine, says=lambda body: said[body["messages"][-1]["content"]])
    runs, rows = Runs(tmp_path, engine), [{"text": text} for text in said]

    record = await runs.run(JSON_FLOW.replace("PARSE", "strict"), rows)
    assert record.figures["failed"] == 4
    assert sorted(runs.prompts()) == sorted(said)
    errors = {each["row"]: each["error"] for each in runs.out("out.errors.jsonl")}
    assert all(f"it begins: {text}" in errors[at] for at, text in enumerate(said.values()) if at)

    record = await runs.run(JSON_FLOW.replace("PARSE", "lenient"), rows, "lenient.jsonl")
    assert runs.prompts() == ["none"], "which is asked again, since it may be answered now"
    assert [row["n"] for row in runs.out("lenient.jsonl")] == [1, 2, 3, 4]

    await runs.run(JSON_FLOW.replace("PARSE", "strict"), rows, "strict.jsonl")
    assert sorted(runs.prompts()) == sorted([*said][1:]), "of what is no JSON nothing is known"
