"""Helium's workflows, declared and not."""

import pytest

from experiments.e44_helium import KAIROS, SYSTEMS, UNDECLARED, Row, figures, run, section, speedup
from experiments.flow_workloads import PRIMITIVES, map_reduce, reflect, trading


def row(s, **of):
    return Row(commit="c", workload="w", s=s, cached_share=0.5, calls=1, **of)


@pytest.mark.parametrize("system", SYSTEMS)
def test_every_system_ends_all_rows(system):
    ran = run(map_reduce(), system, 3, seed=1)

    assert (ran.figures.written, ran.figures.calls) == (3, 21)


def test_declared_equal_operators_are_called_once_and_undeclared_ones_each():
    workload = trading()

    assert run(workload, KAIROS, 1, 1).figures.calls == 88 - 7
    assert run(workload, UNDECLARED, 1, 1).figures.calls == 88


def test_rows_are_of_a_seed_and_what_is_daily_changes_with_the_day():
    stock = trading()
    assert stock.rows(2, seed=1) == stock.rows(2, seed=1) != stock.rows(2, seed=2)
    (first,), (second,) = (stock.rows(1, 1, day) for day in (0, 1))
    same = {name for name in first if first[name] == second[name]}
    assert same == {"profile", "news2", "fundamentals0", "fundamentals1", "fundamentals2"}
    assert len({make().name for make in PRIMITIVES}) == 5
    assert reflect().rows(7, 1)[0]["context"] == reflect().rows(7, 1)[5]["context"]


def test_speedups_are_seed_by_seed():
    rows = [row(2.0 * seed, system=KAIROS, seed=seed) for seed in (1, 2)]
    rows += [row(3.0 * seed, system=each, seed=seed) for each in SYSTEMS if each != KAIROS
             for seed in (1, 2)]  # fmt: skip

    assert speedup(rows, "w", UNDECLARED).mean == pytest.approx(1.5)
    assert "| w | 3.00 (0.50) | 1.50 [1.50, 1.50] |" in section(rows)
    assert [each.value for each in figures(rows)] == [1.5, None]
