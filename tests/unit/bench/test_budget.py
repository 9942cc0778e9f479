"""`make bench-hot`: when a figure fails, and how budgets change."""

import pytest

from bench import budget, hot
from bench.budget import Budget, Ratio, ratio

NAMED, STREAM = "CPU of a named call", "CPU of a stream"
BUDGETS = {NAMED: Budget(2.0, "2026-11-23: why"), STREAM: Budget(1.2, '2026-11-23: "so"')}


def told(median: float) -> Ratio:
    return Ratio(median, median * 0.9, median * 1.1, 6)


def test_a_ratio_is_of_the_medians_and_its_spread_of_the_rounds():
    found = ratio([200, 220, 900], [100, 100, 300])
    assert found.median == pytest.approx(2.2)
    assert (found.lowest, found.highest, found.rounds) == pytest.approx((2.0, 3.0, 3))


def test_rounds_without_a_pair_are_an_error():
    with pytest.raises(ValueError):
        ratio([200, 220], [100])


@pytest.mark.parametrize(("median", "fails"), [(2.0, False), (2.49, False), (2.51, True)])
def test_a_figure_fails_from_a_quarter_above_its_budget(median, fails):
    assert budget.over({NAMED: told(median)}, BUDGETS) == ([NAMED] if fails else [])


def test_a_failure_says_which_figure_what_was_measured_the_budget_and_what_to_do():
    wrong = hot.verdict({NAMED: told(3.0), STREAM: told(1.0)}, BUDGETS)
    assert wrong is not None
    for part in (NAMED, "3.00 [2.70-3.30]", "2.50", "2026-11-23: why", "make profile"):
        assert part in wrong
    assert STREAM not in wrong


def test_what_keeps_its_budget_is_no_failure():
    assert hot.verdict({NAMED: told(2.0), STREAM: told(1.4)}, BUDGETS) is None


def test_a_figure_without_a_budget_and_a_budget_without_a_figure_fail():
    found = {NAMED: told(1.0), "another": told(1.0)}
    assert budget.missing(found, BUDGETS) == [STREAM, "another"]
    assert hot.verdict(found, BUDGETS) is not None


def test_a_budget_far_above_what_is_measured_can_go_down():
    assert budget.loose({NAMED: told(1.5), STREAM: told(1.1)}, BUDGETS) == [NAMED]


def test_lowering_never_raises_and_says_why():
    made = budget.lowered({NAMED: told(1.333), STREAM: told(1.5)}, BUDGETS, "2026-12-01: better")
    assert made == {NAMED: Budget(1.34, "2026-12-01: better"), STREAM: BUDGETS[STREAM]}


def test_what_is_written_is_read_again(tmp_path):
    path = tmp_path / "budget.toml"
    by_processor = {"Intel(R) Xeon(R) @ 2.50GHz": BUDGETS, budget.OTHERS: {NAMED: BUDGETS[NAMED]}}
    budget.write(by_processor, path)
    assert budget.read(path) == by_processor


def test_a_processor_has_budgets_of_its_own_or_those_of_all_others():
    by_processor = {"AMD EPYC": BUDGETS, budget.OTHERS: BUDGETS}
    assert budget.key(by_processor, "AMD EPYC") == "AMD EPYC"
    assert budget.key(by_processor, "AMD EPYC, family 25 model 1") == "AMD EPYC"
    known = by_processor | {"AMD EPYC, family 25": {}}
    assert budget.key(known, "AMD EPYC, family 25 model 1") == "AMD EPYC, family 25"
    assert budget.key(by_processor, "?") == budget.OTHERS


def test_each_figure_of_the_bench_has_a_budget_with_a_dated_reason():
    by_processor = budget.read()
    assert budget.OTHERS in by_processor
    for budgets in by_processor.values():
        assert budgets.keys() == {*hot.BESIDE_REFERENCE, *hot.BESIDE_PEER}
        for each in budgets.values():
            assert each.reason.startswith("20")
            assert ": " in each.reason
