"""How many rows are open at once."""

import pytest

from experiments.flow_workloads import debate, parallel, trading
from kairos.plan.call_shapes import CallShapes, call_shapes
from kairos.plan.costs.token_steps import PromptSegment, ScheduledCall
from kairos.plan.row_window import computed_tokens, rows_at_once


def shapes(prompts, out=10):
    """`prompts`: by operator, its segments of 100 tokens; those in capitals differ by row."""
    calls = {}
    for at, (name, prompt) in enumerate(prompts.items()):
        after = (list(prompts)[at - 1],) if at else ()
        calls[name] = ScheduledCall(tuple(PromptSegment(e, 100) for e in prompt), out, after)
    varies = {
        name: next((at for at, each in enumerate(prompt) if each.isupper()), len(prompt))
        for name, prompt in prompts.items()
    }
    return CallShapes(calls, varies, {})


def test_what_a_row_computes_by_hand():
    chain = shapes({"a": "sA", "b": "sAB", "c": "sABC"})
    waves = [["a"], ["b"], ["c"]]
    # Memory for all: each goes on from the last, and what is static is never computed again.
    assert computed_tokens(chain, waves, 10_000, 3) == 300
    # None at all: everything, each time.
    assert computed_tokens(chain, waves, 0, 3) == 200 + 300 + 400
    # Of one row alone the memory is enough.
    assert computed_tokens(chain, waves, 500, 1) == 300
    assert computed_tokens(chain, waves, 500, 8) >= 600


def test_few_rows_are_open_where_their_contexts_would_not_fit_and_all_where_that_costs_more():
    conversation = shapes({"a": "A", "b": "AB", "c": "ABC", "d": "ABCD", "e": "ABCDE"}, out=1)
    rows = rows_at_once(conversation, 2_000, 1_000)
    assert rows is not None
    assert rows * 500 <= 2_000
    long_answers = shapes({"a": "A", "b": "AB", "c": "ABC"}, out=500)
    assert rows_at_once(long_answers, 2_000, 1_000) is None
    assert rows_at_once(conversation, 10_000_000, 1_000) is None
    assert rows_at_once(shapes({}), 2_000, 1_000) is None


@pytest.mark.parametrize(
    ("workload", "rows"),
    [(parallel(), 16), (debate(), None), (trading(), None)],
    ids=["parallel", "debate", "trading"],
)
def test_of_heliums_workflows_the_long_chains_alone_want_few_rows(workload, rows):
    operators = workload.flow.compile().declaration.operators

    assert rows_at_once(call_shapes(operators), 2 * 65_536, 512) == rows
