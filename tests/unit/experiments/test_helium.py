"""Helium's workflows, declared and not."""

import pytest

from experiments.e44_helium import Row, figures, measured, section, speedup
from experiments.flow_systems import (
    KAIROS,
    LANGGRAPH,
    OTHERS,
    PARTS,
    UNDECLARED,
    run,
    static_beginnings,
)
from experiments.flow_workloads import (
    PRIMITIVES,
    debate,
    map_reduce,
    parallel,
    reflect,
    trading,
    trading_on_reports,
)
from kairos.workload.prompt import length


def row(s, **of):
    given = {"day": 1, "rows": 2, "fetched": 0, "calls": 1}
    return Row(commit="c", workload="w", s=s, cached_share=0.5, **{**given, **of})


@pytest.mark.parametrize("system", [KAIROS, *OTHERS])
def test_every_system_ends_all_rows(system):
    workload = map_reduce()
    ran = run(workload, system, workload.rows(3, 1))

    assert (ran.figures.written, ran.figures.calls) == (3, 21)


def test_declared_equal_operators_are_called_once_and_undeclared_ones_each():
    workload = trading()
    rows = workload.rows(1, 1)

    assert run(workload, KAIROS, rows).figures.calls == 88 - 7
    assert run(workload, UNDECLARED, rows).figures.calls == 88


def test_only_what_is_declared_has_beginnings_of_prompts_computed_ahead():
    workload = reflect()
    touched = {each: run(workload, each, workload.rows(1, 1)).figures.touched for each in OTHERS}
    assert set(touched.values()) == {0}
    assert run(workload, KAIROS, workload.rows(1, 1)).figures.touched > 0


@pytest.mark.long
def test_on_a_second_day_what_did_not_change_is_fetched_by_kairos_alone():
    workload, known = trading(), {}
    run(workload, KAIROS, workload.rows(2, 1), results=known)
    second = workload.rows(2, 1, day=1)

    ran = run(workload, KAIROS, second, results={**known})
    # Of each row three of fundamentals, their digest, and one of the news.
    assert (ran.figures.fetched, ran.figures.calls) == (2 * 5, 2 * (88 - 7 - 5))
    for without in ("prompt cache", ""):
        other = KAIROS if without else UNDECLARED
        assert not run(workload, other, second, without=without, results={**known}).figures.fetched


@pytest.mark.parametrize("part", PARTS)
def test_a_part_that_is_off_changes_nothing_but_how_it_is_done(part):
    workload = debate()
    rows = workload.rows(2, 1)

    ran = run(workload, KAIROS, rows, without=part)
    assert ran.figures.written == 2
    assert (ran.prompt_tokens_cached == 0) == (part == "kv")


@pytest.mark.long
def test_a_row_says_what_came_of_a_batch_also_without_caches():
    found = measured(trading(), KAIROS, 1, 2, day=1, without="kv")
    assert (found.day, found.rows, found.cached_share, found.fetched) == (2, 2, 0, 0)
    assert found.s > 0


def test_an_operator_by_itself_takes_longer_than_all_that_are_ready():
    workload = map_reduce()
    took = {each: run(workload, each, workload.rows(6, 1)).simulated_s for each in OTHERS}

    assert took["opwise"] > 2 * took[LANGGRAPH]


def test_static_beginnings_are_found_by_the_first_call_of_all_where_they_are_held():
    workload = map_reduce()
    beginnings = static_beginnings(workload.flow.compile())
    assert len(beginnings) == 7  # six experts, a summariser
    assert all(100 < length(each) < 200 for each in beginnings)

    rows = workload.rows(1, 1)
    found = [run(workload, each, rows).prompt_tokens_cached for each in ("kvflow-like", LANGGRAPH)]
    # Blocks of 16 tokens, of which the last is not full.
    assert found[0] - found[1] == sum(length(each) // 16 * 16 for each in beginnings)


@pytest.mark.long
def test_more_is_found_where_of_what_waits_the_longest_prefix_goes_first():
    workload = parallel()
    rows = workload.rows(40, 1)
    found = {each: run(workload, each, rows).prompt_tokens_cached for each in ("lspf", LANGGRAPH)}

    assert found["lspf"] > 1.5 * found[LANGGRAPH]


def test_rows_are_of_a_seed_and_what_is_daily_changes_with_the_day():
    stock = trading()
    assert stock.rows(2, seed=1) == stock.rows(2, seed=1) != stock.rows(2, seed=2)
    (first,), (second,) = (stock.rows(1, 1, day) for day in (0, 1))
    same = {name for name in first if first[name] == second[name]}
    assert same == {"profile", "news2", "fundamentals0", "fundamentals1", "fundamentals2"}
    assert len({make().name for make in PRIMITIVES}) == 5
    assert reflect().rows(7, 1)[0]["context"] == reflect().rows(7, 1)[5]["context"]


def test_reports_are_longer_than_documents_and_the_flow_is_the_same():
    short, long = (sum(map(len, make().rows(1, 1)[0].values())) for make in
                   (trading, trading_on_reports))  # fmt: skip
    assert long > 5 * short
    assert run(trading_on_reports(), KAIROS, trading_on_reports().rows(1, 1)).figures.calls == 81


def test_speedups_are_seed_by_seed_and_what_is_missed_is_not_bold():
    rows = [row(2.0 * seed, system=KAIROS, seed=seed) for seed in (1, 2)]
    rows += [row(3.0 * seed, system=each, seed=seed) for each in OTHERS for seed in (1, 2)]

    assert speedup(rows, UNDECLARED).mean == pytest.approx(1.5)
    assert "| w | 3.00 |  | 0.50 | 100 % | **1.50 [1.50, 1.50]** | 1.50 [1.50, 1.50]" in section(
        rows
    )
    assert [each.value for each in figures(rows)] == [1.5, None]


def test_a_second_day_has_an_aim_a_row_alone_and_ablations():
    rows = [
        row(s, system=system, seed=seed, day=day, calls=8 if system == KAIROS else 10)
        for day in (1, 2)
        for seed in (1, 2)
        for system, s in ((KAIROS, 2.0), (UNDECLARED, 1.9), (LANGGRAPH, 3.1))
    ]
    rows += [row(1.0, system=KAIROS, seed=seed, day=2, rows=1) for seed in (1, 2)]
    rows += [row(2.5, system=KAIROS, seed=seed, day=2, without="kv") for seed in (1, 2)]

    said = section(rows)
    assert "| w, day 2 | 2.00 | 1.00 | 0.50 | 80 % | 0.95 [0.95, 0.95] | **1.55" in said
    assert "| w, day 2 | 1.25 [1.25, 1.25] |" in said
    assert [each.met for each in figures(rows)] == [False, True]
