"""Row A1 of the design: how many of the engines' primitives follow an operator."""

from pathlib import Path

import pytest

from kairos import flow
from kairos.workflows.compile.pipeline import compile_plan
from kairos.workflows.declare.yaml_file import read_yaml

EXAMPLES = Path(__file__).parents[4] / "examples"
# Teola's four applications. A prompt that begins ahead has three primitives, a streamed answer too.
GOLDEN = {
    "naive_rag": {
        "vectors": 7,
        "collection": 6,
        "asked": 6,
        "found": 5,
        "note": 5,
        "notes": 2,
        "answer": 2,
    },
    "advanced_rag": {
        "vectors": 9,
        "collection": 8,
        "expanded": 11,
        "vector": 9,
        "asked": 8,
        "found": 7,
        "best": 6,
        "first": 6,
        "second": 4,
        "answer": 2,
    },
    "web_search": {
        "guess": 6,
        "judge": 5,
        "results": 2,
        "informed": 1,
        "answer": 0,
    },
    "contextual_retrieval": {
        "place": 8,
        "placed": 6,
        "vectors": 5,
        "collection": 4,
        "asked": 4,
        "found": 3,
        "best": 2,
        "answer": 2,
    },
}


@pytest.mark.parametrize("name", GOLDEN)
def test_a1_teolas_four_applications_have_these_depths(name):
    passes = flow.Passes(cached=False, stages=False)
    plan = compile_plan(read_yaml((EXAMPLES / f"{name}.yaml").read_text()), passes)
    assert plan.depths == GOLDEN[name]


def refining(rounds):
    f = flow.Flow("refining", max_tokens=30)
    row = f.input("row")

    def better(state, number):
        return f.llm("better", "Better: {{ s }} by {{ p }}", s=state, p=row["passage"])

    f.output("text", f.loop("refine", row["draft"], better, max_rounds=rounds))
    return f


@pytest.mark.parametrize("cached", [True, False])
def test_a1_refine_three_times_is_three_chained_pairs_and_a_cache_counts_for_none(cached):
    for rounds in (1, 2, 3):
        depths = refining(rounds).compile(flow.Passes(cached=cached)).depths
        assert depths == {"better": 2 * rounds - 1}


def test_a1_loops_without_end_stay_within_bounds():
    f = flow.Flow("deep")
    row = f.input("row")

    def nested(level):
        if not level:
            return lambda state: f.llm("it", "{{ s }}", s=state)
        return lambda state: f.loop(f"l{level}", state, nested(level - 1), max_rounds=100)

    f.output("text", nested(3)(row["draft"]))
    assert f.compile().depths == {"it": 1}
