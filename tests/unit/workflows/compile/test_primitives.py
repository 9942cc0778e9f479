"""Row A1 of the design: a plan as primitives of engines."""

from itertools import pairwise
from pathlib import Path
from textwrap import dedent

import pytest

from kairos import flow
from kairos.workflows.compile.pipeline import compile_plan
from kairos.workflows.compile.primitives import primitive_lines
from kairos.workflows.declare.yaml_file import read_yaml

EXAMPLES = Path(__file__).parents[4] / "examples"
# Teola's four applications, over a document of 48 passages.
GOLDEN = {
    "naive_rag": """
        7 vectors:Embed of 48
        6 collection:Ingest of 48 after vectors:Embed
        6 asked:Embed
        5 found:Search after asked:Embed, collection:Ingest
        5 notes.*.note:PartialPrefill
        4 notes.*.note:FullPrefill of 3 after notes.*.note:PartialPrefill, found:Search
        3 notes.*.note:Decode of 3 after notes.*.note:FullPrefill
        2 notes:Aggregate after found:Search, notes.*.note:Decode
        2 answer:PartialPrefill
        1 answer:FullPrefill after answer:PartialPrefill, notes:Aggregate
        0 answer:Decode after answer:FullPrefill
    """,
    "advanced_rag": """
        9 vectors:Embed of 48
        8 collection:Ingest of 48 after vectors:Embed
        11 expanded:Prefill
        10 expanded:PartialDecode after expanded:Prefill
        9 expanded:Decode after expanded:PartialDecode
        9 asked.*.vector:Embed after expanded:PartialDecode
        8 asked:Aggregate after expanded:Decode, asked.*.vector:Embed
        7 found:Search after asked:Aggregate, collection:Ingest
        6 best:Rerank of 48 after found:Search
        6 first:PartialPrefill
        5 first:FullPrefill after first:PartialPrefill, best:Rerank
        4 first:Decode after first:FullPrefill
        4 second:PartialPrefill after best:Rerank
        3 second:FullPrefill after second:PartialPrefill, first:Decode, best:Rerank
        2 second:Decode after second:FullPrefill
        2 answer:PartialPrefill after best:Rerank
        1 answer:FullPrefill after answer:PartialPrefill, best:Rerank, second:Decode
        0 answer:Decode after answer:FullPrefill
    """,
    "web_search": """
        6 guess:Prefill
        5 guess:Decode after guess:Prefill
        5 judge:PartialPrefill
        4 judge:FullPrefill after judge:PartialPrefill, guess:Decode
        3 judge:Decode after judge:FullPrefill
        2 results:Call after judge:Decode
        1 informed:Prefill after results:Call, judge:Decode
        0 informed:Decode after informed:Prefill
        0 answer:Condition after judge:Decode
    """,
    "contextual_retrieval": """
        8 placed.*.place:Prefill of 48
        7 placed.*.place:Decode of 48 after placed.*.place:Prefill
        6 placed:Aggregate after placed.*.place:Decode
        5 vectors:Embed of 48 after placed:Aggregate
        4 collection:Ingest of 48 after placed:Aggregate, vectors:Embed
        4 asked:Embed
        3 found:Search after asked:Embed, collection:Ingest
        2 best:Rerank of 12 after found:Search
        2 answer:PartialPrefill
        1 answer:FullPrefill after answer:PartialPrefill, best:Rerank
        0 answer:Decode after answer:FullPrefill
    """,
}


@pytest.mark.parametrize("name", GOLDEN)
def test_a1_teolas_four_applications_are_these_primitives(name):
    passes = flow.Passes(cached=False, stages=False)
    plan = compile_plan(read_yaml((EXAMPLES / f"{name}.yaml").read_text()), passes)
    graph = plan.primitives({"passages": 48})
    assert list(primitive_lines(graph)) == dedent(GOLDEN[name]).split("\n")[1:-1]


def refining(rounds):
    f = flow.Flow("refining", max_tokens=30)
    row = f.input("row")

    def better(state, number):
        return f.llm("better", "Better: {{ s }} by {{ p }}", s=state, p=row["passage"])

    f.output("text", f.loop("refine", row["draft"], better, max_rounds=rounds))
    return f


def test_a1_refine_three_times_is_three_chained_pairs():
    graph = refining(3).compile(flow.Passes(cached=False)).primitives()
    assert [each.kind for each in graph] == ["Prefill", "Decode"] * 3
    for before, each in pairwise(graph):
        assert each.inputs == (before.name,)
    assert [each.depth for each in graph] == [5, 4, 3, 2, 1, 0]
    assert graph[-1].name == "refine.2.better:Decode"


def test_a1_a_cache_is_looked_at_before_and_counts_for_no_depth():
    first, second, *_ = refining(1).compile().primitives()
    assert (first.kind, second.kind) == ("CacheFetch", "Prefill")
    assert first.depth == second.depth == 1


def test_a1_loops_without_end_stay_within_bounds():
    f = flow.Flow("deep")
    row = f.input("row")

    def nested(level):
        if not level:
            return lambda state: f.llm("it", "{{ s }}", s=state)
        return lambda state: f.loop(f"l{level}", state, nested(level - 1), max_rounds=100)

    f.output("text", nested(3)(row["draft"]))
    assert len(f.compile().primitives()) == 3
