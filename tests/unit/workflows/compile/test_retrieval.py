"""What operators of retrieval take and give."""

from array import array
from base64 import b64encode

import pytest

from kairos.core import InvalidFile
from kairos.flow import Flow
from kairos.workflows import Passes
from kairos.workflows.compile.invalid import InvalidFlow, OperatorFailed
from kairos.workflows.compile.operators import Chunking, Embedding, Ingest, Rerank, Search
from kairos.workflows.compile.retrieval import (
    check_answer,
    check_arguments,
    chunked,
    without_asking,
)
from kairos.workflows.declare.yaml_file import read_yaml

V = b64encode(array("f", [0.5, -1.0]).tobytes()).decode()
W = b64encode(array("f", [0.5]).tobytes()).decode()
HERE = {"texts": ["a"], "vectors": [V]}


def test_texts_are_cut_each_by_itself():
    assert chunked(Chunking(2, 0), ["a b c", "", "d"]) == ["a b", "c", "d"]


@pytest.mark.parametrize("text", [None, 3, {"text": "a"}, ["a", None]])
def test_what_is_no_text_is_not_cut(text):
    with pytest.raises(OperatorFailed, match="text"):
        chunked(Chunking(), text)


def test_too_many_passages_are_refused_with_what_would_help():
    with pytest.raises(OperatorFailed, match="more than 10000 passages: make `size` larger"):
        chunked(Chunking(1, 0), ["a " * 6_000, "b " * 6_000])
    assert len(chunked(Chunking(1, 0), ["a " * 6_000, "b " * 4_000])) == 10_000


def test_passages_that_overlap_too_much_are_refused_before_they_fill_the_memory():
    with pytest.raises(OperatorFailed, match=r"more than 16777216 characters.*`overlap` smaller"):
        chunked(Chunking(10_000, 9_999), "word " * 20_000)


@pytest.mark.parametrize(
    ("params", "arguments", "said"),
    [
        (Embedding(), {"texts": None}, "`texts` is a null"),
        (Embedding(), {"texts": ["a", 1]}, "`texts` has a number in it"),
        (Embedding(), {"texts": ["a"] * 10_001}, "10001 texts, 10000 at most"),
        (Embedding(), {"texts": ["a" * (1 << 20)] * 17}, "more than 16777216 characters"),
        (Ingest(), {"texts": ["a"], "vectors": [V, V]}, "1 texts and 2 vectors"),
        (Ingest(), {"texts": ["a", "b"], "vectors": [V, W]}, "vectors of different lengths"),
        (Ingest(), {"texts": ["a"], "vectors": [[0.5, 1.0]]}, "a vector is a text"),
        (Ingest(), {"texts": ["a"], "vectors": ["abc"]}, "a vector has 1 to"),
        (Ingest(), {"texts": ["a"] * 9_999, "vectors": ["a" * 8_192] * 9_999}, "at most"),
        (Search(), {"vectors": V, "collection": "docs"}, "`collection` is a string"),
        (Search(), {"vectors": V, "collection": [HERE, {"texts": []}]}, "vectors"),
        (Search(), {"vectors": None, "collection": HERE}, "`vectors`"),
        (Search(collection="docs"), {"vectors": 1}, "`vectors`"),
        (Rerank(), {"query": ["a"], "passages": ["a"]}, "`query` is a list"),
        (Rerank(), {"query": "a", "passages": None}, "`passages` is a null"),
        (Rerank(), {"query": "a", "passages": [{"score": 1}]}, "`passages` has a null in it"),
    ],
)
def test_an_argument_that_is_not_what_the_kind_takes_is_refused(params, arguments, said):
    with pytest.raises(OperatorFailed, match=said):
        check_arguments(params, arguments)


@pytest.mark.parametrize(
    ("params", "arguments", "given"),
    [
        (Embedding(), {"texts": []}, []),
        (Embedding(), {"texts": ""}, None),
        (Ingest(), {"texts": [], "vectors": []}, None),
        (Search(), {"vectors": V, "collection": {"texts": [], "vectors": []}}, []),
        (Search(), {"vectors": V, "collection": []}, []),
        (Search(), {"vectors": [], "collection": HERE}, []),
        (Search(), {"vectors": [V], "collection": [{"texts": [], "vectors": []}, HERE]}, None),
        (Search(collection="docs"), {"vectors": []}, []),
        (Rerank(), {"query": "q", "passages": []}, []),
        (Rerank(), {"query": "q", "passages": [{"text": "a", "score": 1.0}]}, None),
    ],
)
def test_where_there_is_nothing_to_embed_search_or_rank_nothing_is_asked(params, arguments, given):
    check_arguments(params, arguments)
    assert without_asking(params, arguments) == given


@pytest.mark.parametrize(
    ("params", "arguments", "answer", "said"),
    [
        (Embedding(), {"texts": "a"}, [V], "a text has one vector"),
        (Embedding(), {"texts": ["a"]}, V, "a text has one vector"),
        (Embedding(), {"texts": ["a", "b"]}, [V], "1 vectors of 2 texts"),
        (Embedding(), {"texts": ["a", "b"]}, [V, W], "different lengths"),
        (Embedding(), {"texts": ["a"]}, [None], "a vector is a text"),
        (Ingest(), {}, ["a"], "a collection is a list"),
        (Ingest(), {}, {"texts": ["a"]}, "vectors"),
        (Search(1), {}, None, "the answer is a null"),
        (Search(1), {}, [{"text": "a", "score": 1.0}] * 2, "2 passages, 1 at most"),
        (Rerank(2), {}, [{"text": "a"}], "not an object of `text` and `score`"),
        (Rerank(2), {}, [{"text": "a", "score": float("nan")}], "not an object of"),
        (Rerank(2), {}, [{"text": "a", "score": 10**400}], "not an object of"),
        (Rerank(2), {}, ["a"], "not an object of"),
    ],
)
def test_an_answer_that_is_not_what_was_asked_is_refused(params, arguments, answer, said):
    with pytest.raises(OperatorFailed, match=said):
        check_answer(params, arguments, answer)


def declared(kind, inputs="{}", more=""):
    return read_yaml(
        "flow: f\noperators:\n  row: {kind: input}\n"
        f"  it: {{kind: {kind}, inputs: {inputs}{more}}}\noutputs: {{it: it}}\n"
    )


@pytest.mark.parametrize(
    ("kind", "inputs", "more", "said"),
    [
        ("chunk", "{}", "", "operator 'it', text: an operator of kind chunk has text"),
        ("chunk", "{text: row}", ", size: 0", "size: it is 0, and may be 1 to 10000"),
        ("chunk", "{text: row}", ", size: 9, overlap: 9", "overlap: it is 9, and may be 0 to 8"),
        ("chunk", "{text: row}", ", retries: 1", "has no 'retries'"),
        ("embed", "{text: row}", "", "texts: an operator of kind embed has texts"),
        ("embed", "{texts: row, x: row}", "", "'x' is bound, and embed has texts alone"),
        ("embed", "{texts: row}", ", batch: 0", "batch: it is 0"),
        ("embed", "{texts: row}", ", model: ''", "model: a name of 1 to 256 characters"),
        ("ingest", "{texts: row}", "", "vectors: an operator of kind ingest has texts, vectors"),
        ("ingest", "{texts: row, vectors: row}", ", collection: a b", "collection: a name begins"),
        ("search", "{vectors: row}", "", r"or the name of one that stays, as `collection`\)"),
        ("search", "{vectors: row, collection: row}", ", collection: docs", "vectors alone"),
        ("search", "{vectors: row}", ", collection: ''", "collection: a name begins"),
        ("rerank", "{query: row, passages: row}", ", top_k: 0", "top_k: it is 0"),
    ],
)
def test_what_is_wrong_is_said_before_anything_runs(kind, inputs, more, said):
    with pytest.raises(InvalidFile, match=said) as raised:
        declared(kind, inputs, more)
    assert ":4: " in str(raised.value)


def test_effects_of_collections_that_stay_are_wanted_and_searches_in_them_not_shared():
    assert declared("ingest", "{texts: row, vectors: row}").operators[1].purity == "pure"
    named = declared("ingest", "{texts: row, vectors: row}", ", collection: docs")
    assert named.operators[1].purity == "effect"
    f = Flow("f")
    row = f.input("row")
    f.output("found", f.search("found", row["v"], collection="docs"))
    assert f.declaration.operators[1].purity == "sampled"
    f.ingest("put", row["t"], row["v"], collection="docs")
    with pytest.raises(InvalidFlow, match="nothing that comes out needs it"):
        f.compile()


def test_an_operators_depth_is_the_longest_way_to_what_comes_out():
    f = Flow("f")
    row = f.input("row")
    chunks = f.chunk("chunks", row["text"])
    kept = f.ingest("kept", chunks, f.embed("vectors", chunks))

    def answered(item):
        near = f.search("near", f.embed("asked", item), collection=kept)
        return f.rerank("best", item, near)

    f.output("answers", f.map("each", row["questions"], answered))
    found = f.compile(Passes(cached=False, stages=False)).depths
    assert {name: found[name] for name in ("each", "best", "near", "asked", "kept")} == {
        "each": 0, "best": 1, "near": 2, "asked": 3, "kept": 3
    }  # fmt: skip
    assert found["vectors"] == 4
    assert "chunks" not in found  # no engine has anything to do with it


def test_a_way_that_is_shorter_makes_no_operator_less_deep():
    f = Flow("f")
    row = f.input("row")
    first = f.embed("first", row["q"])
    found = f.search("found", first, collection=row["c"])
    f.output("both", f.format("both", "{{ found }} {{ first }}", found=found, first=first))
    f.output("first", f.format("alone", "{{ first }}", first=first))
    assert f.compile(Passes(cached=False, stages=False)).depths["first"] == 1


def test_what_is_declared_in_python_is_what_yaml_says():
    f = Flow("f")
    row = f.input("row")
    chunks = f.chunk("chunks", row["text"], size=50, overlap=5)
    vectors = f.embed("vectors", chunks, model="m", batch=8, on_error="default", default=[])
    store = f.ingest("store", chunks, vectors)
    put = f.ingest("put", chunks, vectors, collection="docs", retries=0)
    near = f.search("near", vectors, collection=store, top_k=7)
    there = f.search("there", vectors, collection="docs", after=[put])
    f.output("best", f.rerank("best", row["q"], near, top_k=2, on_error="skip"))
    f.output("there", there)
    read = read_yaml("""
flow: f
operators:
  row: {kind: input}
  chunks: {kind: chunk, size: 50, overlap: 5, inputs: {text: row.text}}
  vectors:
    {kind: embed, model: m, batch: 8, on_error: default, default: [], inputs: {texts: chunks}}
  store: {kind: ingest, inputs: {texts: chunks, vectors: vectors}}
  put: {kind: ingest, collection: docs, retries: 0, inputs: {texts: chunks, vectors: vectors}}
  near: {kind: search, top_k: 7, inputs: {vectors: vectors, collection: store}}
  there: {kind: search, collection: docs, after: [put], inputs: {vectors: vectors}}
  best: {kind: rerank, top_k: 2, on_error: skip, inputs: {query: row.q, passages: near}}
outputs: {best: best, there: there}
""")
    assert read == f.declaration
    assert {each.name: each.retries for each in read.operators} == {
        "row": 0, "chunks": 0, "vectors": 2, "store": 2, "put": 0, "near": 2, "there": 2, "best": 2
    }  # fmt: skip
