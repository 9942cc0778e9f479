"""The planned order of a flow's calls beside the best there is."""

from statistics import fmean

import pytest

from experiments.e45_order_gap import OTHERS, PLANNED, figures, measured, section
from experiments.order_optimum import optimum
from experiments.order_problems import KV_TOKENS, SEVEN, map_reduce
from kairos.plan.costs.token_steps import PromptSegment, ScheduledCall, token_steps


@pytest.fixture(scope="module")
def rows():
    return [measured(problem, "abc") for problem in SEVEN]


def test_e7_seven_small_batches_are_within_0_9_percent_of_the_optimum_and_3_6_at_worst(rows):
    assert all(row.best == pytest.approx(row.bound) for row in rows), "the optimum is proven"
    gaps = [100 * row.gap(PLANNED) for row in rows]
    assert all(gap >= -1e-6 for gap in gaps)
    assert fmean(gaps) <= 0.9
    assert max(gaps) <= 3.6
    assert all(each.met for each in figures(rows))


def test_the_section_has_every_batch_and_way_with_mean_and_worst(rows):
    said = section(rows).splitlines()

    assert len(said) == 2 + len(SEVEN) + 2
    assert all(way in said[0] for way in (PLANNED, *OTHERS))
    assert fmean(row.gap(way) for row in rows for way in OTHERS) > 0.05


def test_the_optimum_of_three_calls_by_hand():
    def call(*names, out, after=()):
        return ScheduledCall(tuple(PromptSegment(each, 100) for each in names), out, after)

    # a: (10 * 100 + 55) / 1000 = 1.055, c the same, b with nothing or with a's 100 tokens shared.
    calls = {
        "a": call("A", out=10), "b": call("A", "B", out=10, after=("a",)), "c": call("C", out=10)
    }  # fmt: skip
    found = optimum(calls, 1_000, ("a", "b", "c"), limit_s=10)
    # b may begin at 11.055; c fits before it, and b takes (10 * 200 + 55) / 1000 then.
    assert found.steps == pytest.approx(min(1.055 + 10 + 1.055 + 1.055, 1.055 + 10 + 2.055))
    assert found.steps == pytest.approx(token_steps([found.order], calls, [1_000]))


def test_a_batch_has_the_calls_of_each_query():
    problem = map_reduce(2, 3)
    calls = problem.of_batch()

    assert len(calls) == 9
    assert calls["2/summary"].after == ("2/expert0", "2/expert1")
    assert KV_TOKENS == 8_192
