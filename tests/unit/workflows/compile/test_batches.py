"""Efficient batches: which one is chosen of what was measured, and which operators have it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kairos import flow
from kairos.workflows.compile.batches import ENOUGH, batch_key, efficient_size, with_batches
from kairos.workflows.compile.check import every_operator
from kairos.workflows.compile.invalid import InvalidFlow
from kairos.workflows.compile.operators import (
    Embedding,
    Ingest,
    RegisteredCall,
    Rerank,
    batch_size,
)
from kairos.workflows.compile.passes.structure import structure


@given(st.dictionaries(st.integers(1, 600), st.floats(1, 1e9), min_size=1, max_size=12))
def test_the_efficient_batch_is_the_smallest_with_nearly_the_best_throughput(latency):
    best = 0.0
    for items, us in latency.items():  # naively
        best = max(best, items / us)
    chosen = None
    for items in sorted(latency):
        if items / latency[items] >= ENOUGH * best:
            chosen = items
            break
    assert efficient_size(latency) == chosen


@given(st.floats(0, 1e6), st.floats(1, 1e5), st.sampled_from([1, 2, 4, 8, 16, 32, 64, 128, 512]))
def test_no_batch_is_a_twentieth_slower_an_item_than_the_best(fixed, item, most):
    latency = {1 << n: fixed + item * (1 << n) for n in range(most.bit_length())}
    chosen = efficient_size(latency)
    best_us = min(us / items for items, us in latency.items())
    assert latency[chosen] / chosen <= best_us / ENOUGH * (1 + 1e-9)


def a_flow():
    f = flow.Flow("f")
    row = f.input("row")
    vectors = f.embed("vectors", row["texts"], model="minilm")
    f.output("own", f.ingest("own", row["texts"], vectors))
    f.output("kept", f.ingest("kept", row["texts"], vectors, collection="docs"))
    f.output("best", f.rerank("best", row["q"], row["texts"]))
    f.output("set", f.embed("set", row["q"], model="minilm", batch=7))

    def one(q):
        return q

    def many(q):
        return q

    f.output("one", f.call("one", one, purity="pure", q=row["q"]))
    f.output("many", f.call("many", many, purity="pure", batched=True, q=row["q"]))
    f.output("each", f.map("each", row["texts"], lambda item: f.embed("inner", item)))
    return f.declaration


MEASURED = {
    "embed:minilm": 64,
    "rerank:bge": 8,
    "ingest": 512,
    "call:many": 128,
    "call:one": 9,
}


@pytest.mark.parametrize(
    ("operator", "measured", "batch"),
    [
        ("vectors", MEASURED, 64),
        ("vectors", {"embed:other": 3}, None),
        ("set", MEASURED, 7),
        ("best", MEASURED, 8),  # the only one of its kind
        ("best", {**MEASURED, "rerank:other": 4}, None),
        ("best", {"rerank:": 4}, 4),
        ("kept", MEASURED, 512),
        ("own", MEASURED, None),
        ("one", MEASURED, None),
        ("many", MEASURED, 128),
        ("inner", MEASURED, 64),
        ("inner", {}, None),
    ],
)
def test_an_operator_has_what_was_measured_unless_it_declares_its_own(operator, measured, batch):
    before, after = a_flow(), with_batches(a_flow(), measured)
    found = {each.name: each for each in every_operator(after.operators)}[operator]
    was = {each.name: each for each in every_operator(before.operators)}[operator]
    assert found.params.batch == batch
    assert structure(found) == structure(was), "what was learnt of it holds, and equal ones merge"


@pytest.mark.parametrize(
    ("params", "key", "usual"),
    [
        (Embedding("m"), "embed:m", 16),
        (Embedding(), "embed:", 16),
        (Rerank(model="m"), "rerank:m", 32),
        (Ingest("docs"), "ingest", 64),
        (RegisteredCall("f", is_batched=True), "call:f", 16),
    ],
)
def test_what_was_not_measured_has_the_usual_batch(params, key, usual):
    assert (batch_key(params), batch_size(params)) == (key, usual)


def test_a_function_that_takes_one_call_has_no_batch():
    f = flow.Flow("f")
    f.output("x", f.call("x", lambda: 1, purity="pure", batch=4))
    with pytest.raises(InvalidFlow, match="takes one call at a time"):
        f.compile()
