"""Flows that retrieve, on engines over HTTP and collections in files."""

import json
from contextlib import AsyncExitStack

import pytest

from kairos.core import SetupError
from kairos.settings import RetrievalSettings
from kairos.workflows.compile.retrieval import passages
from tests.e2e.cli.flow_runs import kairos_command, write_rows
from tests.support.simulate.standin import StandInSettings, serve

ASK = """
flow: ask
operators:
  row: {kind: input}
  passages: {kind: chunk, size: 6, overlap: 2, inputs: {text: row.document}}
  vectors: {kind: embed, inputs: {texts: passages}}
  store: {kind: ingest, inputs: {texts: passages, vectors: vectors}}
  question: {kind: embed, inputs: {texts: row.question}}
  near: {kind: search, top_k: 8, inputs: {vectors: question, collection: store}}
  best: {kind: rerank, top_k: 2, inputs: {query: row.question, passages: near}}
  answer:
    kind: llm
    prompt: "{{ row.question }} {% for each in best %}<{{ each.text }}>{% endfor %}"
    inputs: {best: best}
outputs: {answer: answer, best: best}
"""
INDEX = """
flow: index
operators:
  row: {kind: input}
  vectors: {kind: embed, inputs: {texts: row.passages}}
  store: {kind: ingest, collection: animals, inputs: {texts: row.passages, vectors: vectors}}
outputs: {count: store.count}
"""
FIND = """
flow: find
operators:
  row: {kind: input}
  question: {kind: embed, inputs: {texts: row.question}}
  near: {kind: search, collection: animals, top_k: 1, inputs: {vectors: question}}
outputs: {near: near}
"""


def document(number):
    words = " ".join(f"word{number}-{place}" for place in range(60 + 7 * (number % 5)))
    return f"{words} the otter{number} eats fish every day {words}"


@pytest.fixture
async def embedders():
    async with AsyncExitStack() as stack:
        settings = StandInSettings(model="minilm")
        yield [await stack.enter_async_context(serve(settings)) for _ in range(2)]


@pytest.fixture
async def reranker():
    async with serve(StandInSettings(model="bge")) as standin:
        yield standin


def passages_of(rows):
    return [list(passages(row["document"], 6, 2)) for row in rows]


def texts_of(standin):
    bodies = [json.loads(seen.body) for seen in standin.received]
    return [text for body in bodies for text in body["input"]]


async def test_a9_two_embedders_have_equal_work_within_a_tenth(runs, embedders, reranker):
    retrieval = RetrievalSettings(
        embedders=tuple(each.url for each in embedders), rerankers=(f"{reranker.url}/v1/",)
    )
    rows = [{"document": document(n), "question": f"otter{n} eats fish"} for n in range(40)]
    record = await runs.run(ASK, rows, retrieval=retrieval)

    assert (record.state, record.has_failures) == ("done", False)
    assert all(len(row["best"]) == 2 for row in runs.out())
    prompts = runs.prompts()
    for row, out in zip(rows, runs.out(), strict=True):
        texts = "".join(f"<{each['text']}>" for each in out["best"])
        assert f"{row['question']} {texts}" in prompts
    first, second = map(len, map(texts_of, embedders))
    assert abs(first - second) <= 0.1 * max(first, second), (first, second)
    assert max(len(json.loads(s.body)["input"]) for e in embedders for s in e.received) == 16
    assert {json.loads(seen.body)["model"] for seen in embedders[0].received} == {"minilm"}


async def test_an_operator_says_how_many_texts_an_engine_has_at_once(runs, embedders, reranker):
    retrieval = RetrievalSettings(embedders=(embedders[0].url,), rerankers=(reranker.url,))
    flow = ASK.replace("{kind: embed, inputs: {texts: passages}}",
                       "{kind: embed, batch: 3, inputs: {texts: passages}}")  # fmt: skip
    await runs.run(flow, [{"document": document(1), "question": "otter"}], retrieval=retrieval)

    asked = [len(json.loads(seen.body)["input"]) for seen in embedders[0].received]
    assert max(asked) == 3


async def test_an_embedder_that_cannot_be_reached_costs_no_row(runs, embedders, reranker):
    retrieval = RetrievalSettings(
        embedders=("http://127.0.0.1:9", embedders[0].url), rerankers=(reranker.url,)
    )
    rows = [{"document": document(n), "question": f"otter{n} eats fish"} for n in range(5)]
    record = await runs.run(ASK, rows, retrieval=retrieval)

    assert (record.state, record.has_failures) == ("done", False)
    assert len(texts_of(embedders[0])) == sum(len(texts) for texts in passages_of(rows)) + len(rows)


async def test_a_collection_that_stays_is_filled_by_one_run_and_searched_by_another(
    runs, embedders, tmp_path
):
    retrieval = RetrievalSettings(
        embedders=(embedders[0].url,), collections=str(tmp_path / "collections")
    )
    animals = [{"passages": ["otters eat fish", "bees make honey"]}, {"passages": ["owls hunt"]}]
    await runs.run(INDEX, animals, retrieval=retrieval)
    assert [row["count"] for row in runs.out()] == [2, 1]

    await runs.run(FIND, [{"question": "bees make honey"}], "found.jsonl", retrieval=retrieval)
    assert runs.out("found.jsonl") == [
        {"row": 0, "near": [{"text": "bees make honey", "score": 1.0}]}
    ]


async def test_a_flow_without_llm_calls_needs_no_engine(tmp_path, embedders):
    (tmp_path / "flow.yaml").write_text(INDEX)
    write_rows(tmp_path / "rows.jsonl", [{"passages": ["otters eat fish"]}])
    arguments = ("run", "flow.yaml", "--inputs", "rows.jsonl", "--out", "out.jsonl")
    status, said = await kairos_command(
        tmp_path, *arguments, "--embedder", embedders[0].url, "--collections", "collections"
    )
    assert status == 0, said
    assert (tmp_path / "collections" / "animals.lance").is_dir()

    (tmp_path / "flow.yaml").write_text(ASK)
    status, said = await kairos_command(tmp_path, *arguments, "--embedder", embedders[0].url)
    assert (status, "name who performs the calls" in said) == (1, True)


async def test_a_row_that_searches_where_nothing_is_fails_alone(runs, embedders, tmp_path):
    retrieval = RetrievalSettings(embedders=(embedders[0].url,), collections=str(tmp_path / "none"))
    record = await runs.run(FIND, [{"question": "bees"}], retrieval=retrieval)

    assert record.figures["failed"] == 1
    (failed,) = runs.out("out.errors.jsonl")
    assert "there is no collection 'animals'" in failed["error"]


async def test_the_same_flow_without_its_processors_does_not_begin(runs, embedders):
    rows = [{"document": "a", "question": "b"}]
    with pytest.raises(SetupError, match="--embedder"):
        await runs.run(ASK, rows)
    with pytest.raises(SetupError, match="--reranker"):
        await runs.run(ASK, rows, retrieval=RetrievalSettings(embedders=(embedders[0].url,)))
    retrieval = RetrievalSettings(embedders=(embedders[0].url,), rerankers=(embedders[1].url,))
    with pytest.raises(SetupError, match=r"'best': no engine .* 'bge'; served: minilm"):
        await runs.run(ASK.replace("top_k: 2,", "top_k: 2, model: bge,"), rows, retrieval=retrieval)
    with pytest.raises(SetupError, match="no connection to"):
        await runs.run(ASK, rows, retrieval=RetrievalSettings(embedders=("http://127.0.0.1:9",)))
    assert not runs.engine.calls


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--embedder", "localhost:1"), "embedders: write http://HOST:PORT"),
        (("--embedder", "http://me:secret@host:1"), "no password in the URL"),
        (("--embedder", "http://h:1,api_key_env=NOT_SET"), "NOT_SET is not set"),
        (("--embedder", "http://h:1", "--embedder", "http://h:1/v1"), "an engine twice"),
        (("--collections", "postgresql://me:secret@host/name"), "PGPASSWORD"),
        (("--collections", "mysql://host/name"), "a directory, or postgresql://HOST/NAME"),
    ],
)
async def test_what_the_command_refuses(tmp_path, options, says):
    (tmp_path / "flow.yaml").write_text(ASK)
    write_rows(tmp_path / "rows.jsonl", [{"document": "a", "question": "b"}])
    status, said = await kairos_command(
        tmp_path,
        *("run", "flow.yaml", "--inputs", "rows.jsonl", "--out", "out.jsonl"),
        *("--engine", "http://127.0.0.1:9", *options),
    )

    assert status == 1
    assert says in " ".join(said.split())
    assert "secret" not in said


SCORED = """
flow: scored
operators:
  row: {kind: input}
  scores:
    kind: map
    over: row.texts
    body: {score: {kind: call, function: score, purity: pure, batched: true, inputs: {text: item}}}
    result: score
outputs: {scores: scores}
"""


async def test_calls_of_a_function_go_together_whatever_row_they_are_of(runs):
    batches = []

    def score(text):
        batches.append(len(text))
        return [len(each) for each in text]

    runs.functions.register(score, purity="pure", batched=True)
    rows = [{"texts": ["x" * n for n in range(row, row + 20)]} for row in range(0, 400, 20)]
    record = await runs.run(SCORED, rows)
    assert (record.state, record.has_failures) == ("done", False)
    assert [row["scores"] for row in runs.out()] == [[*map(len, each["texts"])] for each in rows]
    assert sum(batches) == 400, "each text once"
    assert max(batches) == 16
    assert len(batches) <= 60, "25 if no batch goes before it is full"
    before = len(batches)
    await runs.run(SCORED, rows, "again.jsonl", batches={"call:score": 64}, uses_cache=False)
    assert max(batches[before:]) > 16


async def test_a_flow_must_say_whether_its_function_takes_several_calls(runs):
    runs.functions.register(lambda text: text, purity="pure", name="score")
    with pytest.raises(SetupError, match="registered as taking one call at a time"):
        await runs.run(SCORED, [{"texts": ["a"]}])
