"""`make bench-hot`: when a figure fails, and how budgets change."""

from bench import budget, hot
from bench.budget import Budget, Ratio

NAMED, STREAM = "CPU of a named call", "CPU of a stream"
BUDGETS = {NAMED: Budget(2.0, "2026-11-23: why"), STREAM: Budget(1.2, '2026-11-23: "so"')}


def told(median: float) -> Ratio:
    return Ratio(median, median * 0.9, median * 1.1, 6)


def test_a_failure_says_which_figure_what_was_measured_the_budget_and_what_to_do():
    wrong = hot.verdict({NAMED: told(3.0), STREAM: told(1.0)}, BUDGETS)
    assert wrong is not None
    for part in (NAMED, "3.00 [2.70-3.30]", "2.50", "2026-11-23: why", "make profile"):
        assert part in wrong
    assert STREAM not in wrong


def test_each_figure_of_the_bench_has_a_budget_with_a_dated_reason():
    by_processor = budget.read()
    assert budget.OTHERS in by_processor
    for budgets in by_processor.values():
        assert budgets.keys() == {*hot.BESIDE_REFERENCE, *hot.BESIDE_PEER}
        for each in budgets.values():
            assert each.reason.startswith("20")
            assert ": " in each.reason
