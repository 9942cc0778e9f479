"""Operators of retrieval, as the executor has them done."""

import gc

from kairos.flow import Flow
from kairos.workflows import FlowLimits, Passes
from kairos.workflows.compile.operators import Embedding, Ingest, Rerank, Search, kind_of
from kairos.workflows.execute.commands import FailRow, KeepResult, WriteRow
from kairos.workflows.execute.frames import ValueFrame
from tests.support.simulate.standin import processed, vector
from tests.support.workflows.flow_world import FlowWorld, Journal
from tests.support.workflows.naive import Naive

TEXT = "one two three four five six seven"
PROMPT = "{% for each in best %}{{ each.text }};{% endfor %}{{ row.question }}"


def ask(**search):
    """A question to a text: cut, embedded, searched, ranked, answered."""
    f = Flow("ask")
    row = f.input("row")
    chunks = f.chunk("chunks", row["text"], size=2, overlap=0)
    vectors = f.embed("vectors", chunks, batch=2)
    index = f.ingest("store", chunks, vectors)
    question = f.embed("question", row["question"], model="m")
    near = f.search("near", question, **({"collection": index, "top_k": 3} | search))
    best = f.rerank("best", row["question"], near, top_k=2)
    f.output("answer", f.llm("answer", PROMPT, best=best, row=row))
    return f


def rows(count=1, questions=1):
    return [{"text": TEXT, "question": f"q{n % questions}"} for n in range(count)]


def world(flow, table, process=None, passes=None, **kwargs):
    def said(messages, attempt):
        return f"said {messages[-1]['content']}"

    passes = passes or Passes(stages=False)  # as it is declared
    made = FlowWorld(flow.compile(passes), table, said, process=process, **kwargs)
    made.run()
    return made


def once(kind, arguments, attempt):
    if attempt == 1:
        raise TimeoutError("no answer")
    return processed(kind, arguments)


def test_what_comes_out_is_what_one_step_after_the_other_gives():
    table = rows(5, questions=3)
    naive = Naive(ask().declaration, lambda messages, _: f"said {messages[-1]['content']}")
    assert world(ask(), table).table()["written"] == naive.run(table).written


def test_rows_with_the_same_document_embed_it_once():
    ran = world(ask(), rows(20, questions=20), limits=FlowLimits(capacity=8))
    assert sorted(each.node for each in ran.asked if each.kind == "embed") == [
        *["question"] * 20, "vectors"
    ]  # fmt: skip
    apart = world(
        ask(), rows(20, questions=20), passes=Passes(cse=False, cached=False, stages=False)
    )
    assert sum(each.node == "vectors" for each in apart.asked) == 20


def test_a_collection_that_stays_is_written_as_an_effect_and_searched_for_each_row():
    f = Flow("put")
    row = f.input("row")
    put = f.ingest("put", row["texts"], f.embed("v", row["texts"]), collection="docs")
    near = f.search("near", f.embed("q", row["q"]), collection="docs", top_k=1, after=[put])
    f.output("count", put["count"])
    f.output("near", near)
    table = [{"texts": ["a", "b"], "q": "same"} for _ in range(3)]
    ran = world(f, table)

    puts = [each for each in ran.asked if each.kind == "ingest"]
    assert sorted(each.idempotency_key for each in puts) == ["0/put/0", "0/put/1", "0/put/2"]
    assert puts[0].arguments["collection"] == "docs"
    searches = [each for each in ran.asked if each.kind == "search"]
    assert len(searches) == 3
    assert set(ran.journal.cache) == {each.signature for each in ran.asked if each.kind == "embed"}
    written = [each.values for each in ran.log if isinstance(each, WriteRow)]
    assert [each["count"] for each in written] == [2, 2, 2]


def test_a_processor_that_does_not_answer_is_asked_again():
    ran = world(ask(), rows(), once)
    assert ran.end == "done"
    assert {each.attempt for each in ran.asked} == {1, 2}
    assert ran.table()["failed"] == set()
    assert ran.executor.figures.processed == 2 * 5


def test_an_answer_that_is_not_what_was_asked_fails_the_row_alone():
    def broken(kind, arguments, attempt):
        if arguments.get("texts") == "q1":
            return ["no vector"]
        return processed(kind, arguments)

    ran = world(ask(), rows(3, questions=3), broken)
    (failed,) = [each for each in ran.log if isinstance(each, FailRow)]
    assert (failed.row, failed.node) == (1, "question")
    assert "a text has one vector" in failed.error
    assert len(ran.table()["written"]) == 2


def test_what_a_session_found_out_is_not_asked_again():
    journal, dead = Journal(), []

    def dies(kind, arguments, attempt):
        if kind == "rerank" and not dead:
            raise ValueError("no memory")
        return processed(kind, arguments)

    first = world(ask(), rows(), dies, Passes(cached=False, stages=False), journal=journal)
    assert first.table()["failed"] == {(0, 0)}
    del journal.ended[0, 0]  # a failed row is tried again
    dead.append(True)
    second = world(ask(), rows(), dies, Passes(cached=False, stages=False), journal=journal)
    assert [each.kind for each in second.asked] == ["rerank"]
    assert [each.node for each in second.log if isinstance(each, KeepResult)] == ["best", "answer"]


def test_calls_of_processors_are_bounded_apart_from_those_of_engines():
    limits = FlowLimits(capacity=1, processors=3, max_open_rows=50)
    f = Flow("f")
    row = f.input("row")
    f.output("v", f.embed("v", row["question"]))
    ran = world(f, rows(50, questions=50), limits=limits)
    assert ran.most_in_flight == 3


def vectors_of(count, row):
    return {"texts": [f"{row} {n}" for n in range(count)]}


def embedding(f, row):
    return f.embed("v", row["texts"])


def found_in(f, row):
    store = f.ingest("store", row["texts"], embedding(f, row))
    return f.search("near", f.embed("q", "same"), collection=store, top_k=1)


def test_vectors_are_kept_until_their_row_has_ended_and_no_longer():
    f = Flow("f")
    f.output("near", found_in(f, f.input("row")))
    ran = world(f, [vectors_of(3, n) for n in range(4)], passes=Passes(cached=False, stages=False))
    kept = {(e.node, e.row): e for e in ran.log if isinstance(e, KeepResult)}
    assert {node for node, _ in kept} == {"v", "store", "q", "near"}
    assert all(each.until_end == (each.node != "near") for each in kept.values())
    assert {node for _, node, _ in ran.journal.results} == {"near"}


def test_nothing_of_a_row_is_held_when_it_has_ended():
    limits = FlowLimits(capacity=4, max_open_rows=8, memo_bytes=0)
    f = Flow("f")
    f.output("near", found_in(f, f.input("row")))
    ran = FlowWorld(
        f.compile(Passes(stages=False)),
        [vectors_of(30, n) for n in range(100)],
        None,
        limits=limits,
    )
    most = []

    class Counting(list):
        def append(self, command):
            if isinstance(command, WriteRow) and command.row % 20 == 0:
                gc.collect()
                most.append(sum(isinstance(each, ValueFrame) for each in gc.get_objects()))

    ran.log = Counting()
    ran.run()
    assert len(most) == 5
    assert max(most) <= 8 + 1  # with the one that ends
    gc.collect()
    ran.pending.clear()
    assert [each for each in gc.get_objects() if isinstance(each, ValueFrame)] == []


def asked_twice(first, second, revisions=("", "")):
    """Whether two operators of a row that get the same arguments make two calls."""
    made = []
    for params, revision in zip((first, second), revisions, strict=True):
        f = Flow("f")
        row = f.input("row")
        inputs = {
            "embed": {"texts": row["t"]},
            "ingest": {"texts": row["t"], "vectors": row["v"]},
            "search": {"vectors": row["v"], "collection": row["c"]},
            "rerank": {"query": row["q"], "passages": row["t"]},
        }[kind_of(params)]
        if isinstance(params, Search) and params.collection:
            del inputs["collection"]
        f.output("it", f._add("it", params, inputs))
        ran = FlowWorld(f.compile(revision=revision), [GIVEN], None)
        ran.run()
        (asked,) = ran.asked
        made.append(asked.signature)
    return made[0] != made[1]


V = vector("any")
GIVEN = {"t": ["a"], "v": [V], "c": {"texts": ["a"], "vectors": [V]}, "q": "q"}


def test_what_is_asked_is_another_where_a_setting_counts_and_the_same_where_none_does():
    assert not asked_twice(Embedding(batch=1), Embedding(batch=2))
    assert asked_twice(Embedding("a"), Embedding("b"))
    assert asked_twice(Embedding(), Embedding(), revisions=("1", "2"))
    assert asked_twice(Search(1), Search(2))
    assert not asked_twice(Search(1), Search(1), revisions=("1", "2"))
    assert asked_twice(Search(1, "a"), Search(1, "b"))
    assert asked_twice(Search(1), Search(1, "a"))
    assert asked_twice(Rerank(1), Rerank(2))
    assert asked_twice(Rerank(1, "a"), Rerank(1, "b"))
    assert asked_twice(Rerank(), Rerank(), revisions=("1", "2"))
    assert asked_twice(Ingest(), Ingest("a"))


def test_in_stages_or_not_a_list_has_as_many_texts_at_most():
    f = Flow("ask")
    texts = f.input("row")["texts"]
    f.output("store", f.ingest("store", texts, f.embed("vectors", texts, batch=2_048)))
    table = [{"texts": ["a"] * 10_001}]
    errors = [
        end.error
        for stages in (True, False)
        for end in world(f, table, passes=Passes(stages=stages)).log
        if isinstance(end, FailRow)
    ]
    assert errors == ["`texts` has 10001 texts, 10000 at most"] * 2
