"""Experiments in small: each runs, writes its rows and section; rows in git have its form.

`make experiments`, a part of the acceptance run, makes every reduced grid.
"""

from statistics import fmean

import msgspec
import pytest

from experiments import (
    e34_hardware_pairs,
    e37_autoscaling,
    e45_order_gap,
    retrieval_runs,
    switching,
)
from experiments import page as pages
from experiments.claim import Study, View
from experiments.order_problems import SEVEN
from experiments.rates import rates
from experiments.report import EXPERIMENTS, RESULTS, write_rows
from experiments.runs import Row, code_of, run
from experiments.sections import CLAIMS, SECTIONS, read_rows
from experiments.untuned import Run, measured

pytestmark = pytest.mark.interpreted

STUDIES = {name: each for name, each in SECTIONS.items() if isinstance(each, Study)}
KEPT = [name for name in STUDIES if (RESULTS / f"{name}.jsonl").exists()]
QUICKEST = (
    "e45_order_gap",
    "e48_declared_order",
    "e34_hardware_pairs",
    "e51_untuned",
    "e52_guard_constants",
    "e53_drawn_orders",
    "e54_drawn_placements",
    "e57_planned_rows",
    "e58_kept_prefixes",
    "e59_names_alone",
    "e60_convergence",
    "e63_little_memory",
    "e64_mini_batches",
    "e65_depth_order",
    "e66_order_forecast",
    "e68_measured_batches",
    "e69_served_passes",
)


@pytest.mark.parametrize("name", QUICKEST)
def test_a_reduced_study_writes_rows_and_says_what_they_mean(name, tmp_path):
    study = STUDIES[name]

    rows = list(study.measure(True))
    write_rows(tmp_path / "rows.jsonl", rows)

    lines = (tmp_path / "rows.jsonl").read_bytes().splitlines()
    assert [msgspec.json.decode(each, type=study.row) for each in lines] == rows
    assert "|" in study.section(rows)


def test_a_simulated_run_comes_out_the_same_twice_and_is_read_again():
    grid = CLAIMS["e09_preemption"].grids[0]
    (_, cell) = next(grid.cells(rates(), quick=True))
    cell = msgspec.structs.replace(cell, workflows=12)

    outcome = run(cell)

    again = msgspec.structs.replace(run(cell), cpu_s=outcome.cpu_s)
    assert again == outcome
    row = Row(commit="c", code=code_of(cell), cell=cell, outcome=outcome)
    assert msgspec.json.decode(msgspec.json.encode(row), type=Row) == row


def test_kept_rows_of_a_kind_are_measured_again_where_the_last_of_them_comes_out_different():
    asked = [Run(setting="8b", guard="none", seed=seed, part=32) for seed in (1, 2)]
    asked.append(Run(setting="8b", guard="patience", seed=1, part=32))
    fresh = list(measured(asked))
    marked = [msgspec.structs.replace(row, commit="kept") for row in fresh]

    assert list(measured(asked, marked)) == marked

    other = msgspec.structs.replace(marked[1], mean_s=0.0)
    again = list(measured(asked, [marked[0], other, marked[2]]))
    assert [row.commit == "kept" for row in again] == [False, False, True]
    assert [row.mean_s for row in again] == [row.mean_s for row in fresh]


@pytest.mark.parametrize("name", KEPT)
def test_the_report_has_what_the_rows_in_git_give(name):
    study = STUDIES[name]
    rows = read_rows(name, study, quick=False)
    assert rows
    report = (EXPERIMENTS / "REPORT.md").read_text()
    assert study.section(rows).strip() in report


def test_a_section_without_its_rows_stays_as_the_report_has_it(tmp_path, monkeypatch):
    report = (EXPERIMENTS / "REPORT.md").read_text()
    (tmp_path / "REPORT.md").write_text(report)
    monkeypatch.setattr(pages, "EXPERIMENTS", tmp_path)
    monkeypatch.setattr(pages, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(pages, "read_rows", lambda *_: [])

    path, incomplete = pages.write_page(View(rates(), {}, False))

    assert path.read_text() == report
    assert incomplete == list(SECTIONS)


def test_e7_planned_orders_of_seven_batches_are_within_0_9_percent_of_the_optimum():
    rows = [e45_order_gap.measured(problem, "c") for problem in SEVEN]
    gaps = [100 * row.gap(e45_order_gap.PLANNED) for row in rows]
    assert fmean(gaps) <= 0.9
    assert max(gaps) <= 3.6


@pytest.mark.long
def test_g9_pairs_are_compared_with_the_papers_baseline():
    rows = [*e34_hardware_pairs.measure(True)]
    base = [row for row in rows if row.pair == e34_hardware_pairs.BASELINE]
    assert len(rows) == 16 * (1 + len(e34_hardware_pairs.PAIRS))
    assert {row.tokens_per_usd for row in base} == {1.0}
    said = e34_hardware_pairs.section(rows)
    assert "| h100::gaudi3 over b200::b200 | about 1, or slightly above | 0.91 to 1.18 |" in said
    [figure] = e34_hardware_pairs.figures(rows)
    assert figure.value == pytest.approx(1.02, abs=0.03)


def test_g11_on_each_of_five_days_forecast_takes_15_percent_fewer_hours_at_equal_p95():
    rows = read_rows("e37_autoscaling", e37_autoscaling.STUDY, quick=False)
    ratios = e37_autoscaling._ratios(rows, (0.9,), e37_autoscaling.QUEUE)
    assert len(ratios) == len(e37_autoscaling.SEEDS)
    assert max(ratios) <= e37_autoscaling.AIM


@pytest.mark.long
@pytest.mark.parametrize(("workflow", "least"), [("W2", 1.0), ("W3", 1.3)])
def test_with_models_that_switch_kairos_is_as_quick_as_any_other(workflow, least):
    took = {
        system: switching.run(
            switching.SwitchingRun(workflow=workflow, system=system, rows=40)
        ).simulated_s
        for system in (switching.KAIROS, "topological", "round robin", "co-located")
    }
    ours = took.pop(switching.KAIROS)
    assert min(took.values()) >= 0.99 * ours
    assert took["topological"] >= least * ours


@pytest.mark.long
@pytest.mark.parametrize("app", retrieval_runs.MODULES)
def test_answers_of_every_system_are_those_of_the_chain_of_modules(app):
    base = retrieval_runs.Run(app=app, system=retrieval_runs.CHAIN, chunks=6, answer_tokens=10)
    chain = retrieval_runs.run(base)
    assert chain.answers[0]["answer"]
    for system in retrieval_runs.SYSTEMS[1:]:
        other = msgspec.structs.replace(base, system=system)
        assert retrieval_runs.run(other).answers == chain.answers, system
