"""Row A3 of the design: what is embedded and ingested goes in stages."""

import pytest

from kairos import flow
from kairos.workflows import FlowLimits, RunProcessor
from kairos.workflows.compile.primitives import primitive_lines
from kairos.workflows.execute.commands import FailRow, WriteRow
from kairos.workflows.execute.executor import Executor
from kairos.workflows.execute.facts import CallAnswered, CallBroke, RowRead
from tests.support.simulate.standin import processed

OFF = flow.Passes(stages=False, cached=False)
ON = flow.Passes(cached=False)


def indexing(**how):
    """A document of 48 words is cut into as many passages, and searched."""
    f = flow.Flow("indexing")
    row = f.input("row")
    chunks = f.chunk("chunks", row["text"], size=1, overlap=0)
    vectors = f.embed("vectors", chunks, batch=16, **how)
    index = f.ingest("collection", chunks, vectors)
    query = f.embed("query", row["q"])
    f.output("found", f.search("found", query, collection=index, top_k=4))
    f.output("collection", index)
    return f


ROW = {"text": " ".join(f"w{n}" for n in range(48)), "q": "w7"}


class Row:
    """One row of an executor whose processors answer when they are told to."""

    def __init__(self, plan, row):
        executor = Executor(plan, FlowLimits(capacity=4))
        executor.start()
        self.handle, self.waiting, self.end = executor.handle, [], None
        self._do(RowRead(0, row))

    def _do(self, fact):
        for command in self.handle(fact):
            if isinstance(command, RunProcessor):
                self.waiting.append(command)
            elif isinstance(command, WriteRow | FailRow):
                self.end = command

    def answer(self, node):
        (command,) = [each for each in self.waiting if each.node == node]
        self.waiting.remove(command)
        self._do(CallAnswered(command.call, processed(command.kind, command.arguments)))

    def breaks(self, node):
        (command,) = [each for each in self.waiting if each.node == node]
        self.waiting.remove(command)
        self._do(CallBroke(command.call, "broken", retry=False))

    def nodes(self):
        return [each.node for each in self.waiting]

    def all(self):
        while self.waiting:
            self.answer(self.waiting[0].node)
        return self.end


def test_a3_48_chunks_are_3_stages_and_the_first_is_ingested_before_the_last_is_embedded():
    row = Row(indexing().compile(ON), ROW)
    stages = [f"collection_stages.{n}.vectors_part" for n in range(3)]
    assert row.nodes() == [*stages, "query"] or row.nodes() == ["query", *stages]
    sizes = [len(each.arguments["texts"]) for each in row.waiting if each.operator != "query"]
    assert sizes == [16, 16, 16]
    row.answer(stages[1])
    assert "collection_stages.1.collection_part" in row.nodes()
    assert stages[0] in row.nodes()
    assert stages[2] in row.nodes()
    assert row.all() == Row(indexing().compile(OFF), ROW).all()
    assert len(row.end.values["collection"]["vectors"]) == 48


def test_a3_48_chunks_are_3_stages_and_an_aggregate_among_primitives():
    graph = indexing().compile(ON).primitives({"chunks": 48})
    parts = [f"collection_stages.{number}." for number in range(3)]
    lines = [
        line
        for part in parts
        for line in (
            f"3 {part}vectors_part:Embed of 16",
            f"2 {part}collection_part:Ingest of 16 after {part}vectors_part:Embed",
        )
    ]
    ingested = ", ".join(f"{part}collection_part:Ingest" for part in parts)
    assert list(primitive_lines(graph)) == [
        *lines,
        f"1 collection:Aggregate after {ingested}",
        "1 query:Embed",
        "0 found:Search after query:Embed, collection:Aggregate",
    ]


@pytest.mark.parametrize("text", ["", "one", " ".join(["w"] * 16), " ".join(["w"] * 17)])
def test_a3_few_texts_or_none_give_the_same(text):
    row = {"text": text, "q": "w"}
    assert Row(indexing().compile(ON), row).all() == Row(indexing().compile(OFF), row).all()


def test_a3_a_part_that_breaks_fails_the_row():
    row = Row(indexing(retries=0).compile(ON), ROW)
    row.breaks("collection_stages.2.vectors_part")
    assert (row.end.node, row.end.error) == ("vectors", "broken"), "as the flow declares it"


def filling(**how):
    f = flow.Flow("filling")
    row = f.input("row")
    chunks = f.chunk("chunks", row["text"], size=1, overlap=0)
    vectors = f.embed("vectors", chunks, batch=how.pop("embeds", 16))
    f.output("store", f.ingest("store", chunks, vectors, collection="docs", **how))
    return f


@pytest.mark.parametrize(
    ("words", "embeds", "puts", "stages"),
    [
        (0, 16, 16, [0]),
        (1, 16, 16, [1]),
        (16, 16, 16, [16]),
        (17, 16, 16, [16, 1]),
        (48, 16, 1, [16, 16, 16]),  # no stage is less than the embedder takes at once
        (48, 16, 32, [32, 16]),
        (48, 16, 33, [48]),  # whole batches of the embedder
        (48, 5, 12, [15, 15, 15, 3]),
        (150, 16, None, [64, 64, 22]),
    ],
)
def test_passages_of_a_collection_that_stays_go_in_stages_and_are_counted_together(
    words, embeds, puts, stages
):
    made = filling(embeds=embeds, batch=puts)
    row = {"text": " ".join(f"w{n}" for n in range(words))}
    staged = Row(made.compile(ON), row)
    asked = [each for each in staged.waiting if each.kind == "embed"]
    assert [len(each.arguments["texts"]) for each in asked] == [n for n in stages if n]
    assert all(each.arguments["batch"] == embeds for each in asked)
    assert staged.all() == Row(made.compile(OFF), row).all()
    assert staged.end.values["store"] == {"collection": "docs", "count": words}


def test_a_part_of_a_collection_that_stays_that_breaks_fails_the_row():
    row = Row(filling(batch=16, retries=0).compile(ON), ROW)
    row.answer("store_stages.0.vectors_part")
    row.answer("store_stages.0.store_part")
    row.answer("store_stages.1.vectors_part")
    row.breaks("store_stages.1.store_part")
    assert (row.end.node, row.end.error) == ("store", "broken")


def kinds(f):
    return [each.kind for each in f.compile(ON).declaration.operators]


def test_a3_stages_are_made_only_where_nobody_can_tell():
    assert "stages" in kinds(indexing())
    assert "stages" not in kinds(indexing(on_error="skip"))
    f = flow.Flow("f")
    row = f.input("row")
    vectors = f.embed("vectors", row["texts"])
    f.output("vectors", vectors)
    f.output("index", f.ingest("index_", row["texts"], vectors))
    assert "stages" not in kinds(f)


def test_a3_names_that_are_taken_are_not_taken_again():
    f = indexing()
    f.output("x", f.format("collection_stages", "{{ q }}", q="x"))
    names = [each.name for each in f.compile(ON).declaration.operators]
    assert "collection_stages2" in names
    assert len(names) == len(set(names))
