"""Columns that rows are parted by, against the calls that a naive count finds in several parts."""

import random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kairos.flow import Flow
from kairos.workflows.compile.pipeline import compile_plan
from kairos.workflows.compile.sharing import key_of, part_of, shared_columns
from tests.support.examples import examples


def reviews():
    """Return a flow that sums up each product once, and judges each review with that."""
    flow = Flow("reviews")
    row = flow.input("row")
    facts = flow.llm("facts", "Facts of {{ p }}", p=row["product"])
    said = flow.llm("said", "{{ r }} in {{ lang }}", r=row["review"], lang=row["language"])
    judged = flow.llm("judged", "{{ f }} against {{ s }}", f=facts, s=said)
    flow.output("judged", judged)
    return compile_plan(flow.declaration).declaration


def table(count, products, languages=3):
    return [
        {"product": n % products, "review": f"r{n}", "language": n % languages, "id": n}
        for n in range(count)
    ]


@pytest.mark.parametrize(
    ("rows", "parts", "columns"),
    [
        (table(200, 20), 2, ("product",)),
        (table(200, 50), 4, ("product",)),
        (table(200, 200), 2, None),  # no two ask the same
        (table(200, 1), 2, None),  # one product would have all rows
        (table(200, 3), 2, None),  # three are too few to be even
        (table(200, 20), 1, ("product",)),
        ([], 2, None),
        ([{"product": "x"}] * 100, 2, None),
    ],
)
def test_rows_are_parted_by_what_most_equal_calls_need(rows, parts, columns):
    assert shared_columns(reviews(), rows, parts) == columns


def test_of_two_operators_that_share_the_one_counts_that_saves_more():
    flow = Flow("two")
    row = flow.input("row")
    flow.output("a", flow.llm("a", "{{ x }}", x=row["a"]))
    flow.output("b", flow.llm("b", "{{ x }} {{ y }}", x=row["b"], y=row["c"]))
    declaration = compile_plan(flow.declaration).declaration
    rows = [{"a": n // 2, "b": n % 20, "c": n % 20} for n in range(200)]
    assert shared_columns(declaration, rows, 2) == ("b", "c")


@pytest.mark.parametrize("kind", ["whole row", "sampled", "effect", "in a loop", "after a group"])
def test_what_cannot_be_shared_parts_nothing_and_bodies_count(kind):
    flow = Flow("odd")
    row = flow.input("row")
    match kind:
        case "whole row":
            out = flow.llm("x", "{{ r }}", r=row)
        case "sampled":
            out = flow.llm("x", "{{ r }}", r=row["product"], temperature=1)
        case "effect":
            out = flow.call("x", print, text=row["product"], purity="effect")
        case "in a loop":
            out = flow.loop(
                "x", row["product"], lambda state: flow.llm("y", "{{ s }}", s=state), max_rounds=2
            )
        case "after a group":
            group = flow.group("g", "x", row["id"], x=row["product"])
            out = flow.llm("x", "{{ k }}", k=group["key"])
    flow.output("out", out)
    found = shared_columns(compile_plan(flow.declaration).declaration, table(200, 20), 2)
    assert found == (("product",) if kind == "in a loop" else None)


NAMES = ["a", "b", "c"]
SETS = st.lists(st.sets(st.sampled_from(NAMES), min_size=1), min_size=1, max_size=4)


@examples(60)
@given(SETS, st.integers(0, 10**6), st.integers(1, 5))
def test_no_two_parts_ask_the_same_of_an_operator_that_needs_all_of_the_columns(needs, seed, parts):
    draw, flow = random.Random(seed), Flow("drawn")
    row = flow.input("row")
    for at, columns in enumerate(needs):
        bound = {name: row[name] for name in columns}
        text = f"{at} " + " ".join(f"{{{{ {name} }}}}" for name in sorted(columns))
        flow.output(f"o{at}", flow.llm(f"o{at}", text, inputs=bound))
    declaration = compile_plan(flow.declaration).declaration
    rows = [
        {name: draw.choice([draw.randrange(9), None, "x"]) for name in NAMES} for _ in range(90)
    ]
    chosen = shared_columns(declaration, rows, parts)
    if chosen is None:
        return
    asked = {}
    for each in rows:
        part = part_of(key_of(each, chosen), parts)
        for at, columns in enumerate(needs):
            if columns >= set(chosen):
                call = at, msgspec.json.encode([each[name] for name in sorted(columns)])
                assert asked.setdefault(call, part) == part
