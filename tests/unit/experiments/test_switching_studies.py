"""The studies of devices that switch models: what they run, and what they say of it."""

import pytest
from msgspec.structs import replace

from experiments import e41_halo_offline, e42_switching, e43_online
from experiments.switching import (
    ALIKE,
    BASELINES,
    KAIROS,
    ONE,
    SWITCHING,
    SwitchingRow,
    SwitchingRun,
    rows,
    run,
    speedup,
    workflow,
)
from experiments.switching_bounds import best_placement_s, loads_alone_s


def row(s, **of):
    return SwitchingRow(commit="c", run=SwitchingRun(**of), s=s, loads=2)


@pytest.mark.parametrize("name", [*ALIKE, *SWITCHING])
def test_workflows_have_one_model_or_more_and_rows_share_documents(name):
    plan = workflow(name).compile()
    assert (len(plan.models) > 1) == (name in SWITCHING)
    table = rows(8, 1, shared=4)
    assert len({each["text"] for each in table}) == 2


@pytest.mark.long
@pytest.mark.parametrize("system", [KAIROS, ONE, *BASELINES])
def test_every_system_ends_all_rows_and_loads_each_model_at_least_once(system):
    asked = SwitchingRun(workflow="W5", system=system, rows=12)
    ran = run(asked)
    assert ran.figures.written == 12
    assert ran.loads >= 2
    assert run(replace(asked, workflow="three", rows=4)) is not None or system == "fixed"


@pytest.mark.long
def test_kairos_is_as_quick_as_any_with_one_model_and_quicker_than_topological_with_two():
    for name, least in (("W2", 1.0), ("W3", 1.3)):
        took = {
            system: run(SwitchingRun(workflow=name, system=system, rows=40)).simulated_s
            for system in (KAIROS, "topological", "round robin", "co-located")
        }
        ours = took.pop(KAIROS)
        assert min(took.values()) >= 0.99 * ours
        assert took["topological"] >= least * ours


def test_more_rows_than_are_together_let_a_topological_scheduler_switch_again_and_again():
    asked = SwitchingRun(workflow="W3", devices=1, rows=12, loads="sleep", system="topological")
    few, all_ = (run(replace(asked, max_open_rows=most)) for most in (2, 64))
    assert few.loads > 2 * all_.loads


def test_speedups_are_seed_by_seed():
    found = [
        row(s, workflow="W2", system=system, seed=seed)
        for system, seed, s in ((KAIROS, 1, 2.0), (KAIROS, 2, 4.0), (ONE, 1, 20.0), (ONE, 2, 44.0))
    ]
    ours, theirs = found[0].run, found[2].run
    assert speedup(found, ours, theirs).mean == pytest.approx(10.5)
    assert speedup(found, ours, replace(theirs, system="fixed")) is None


def test_sections_say_what_is_missed_and_figures_whether_aims_are_met():
    offline = [
        row(s, workflow=name, system=system, seed=seed, rows=9)
        for name, times in (("W2", 20.0), ("W3", 9.0))
        for system, s in ((KAIROS, 10.0), (ONE, 10.0 * times))
        for seed in (1, 2)
    ]
    said = e41_halo_offline.section(offline)
    assert "| W2 | 9 | 10.0 | 200 | **20.0 [20.0, 20.0]** |" in said
    assert "| W3 | 9 | 10.0 | 90 | 9.0 [9.0, 9.0] |" in said
    [figure] = e41_halo_offline.figures(offline)
    assert (figure.value, figure.met) == (20.0, True)

    batch = [
        row(s, workflow=name, system=system, seed=seed)
        for name, times in (("W2", 0.9), ("W3", 1.6))
        for system, s in ((KAIROS, 10.0), ("topological", 10.0 * times), ("fixed", None))
        for seed in (1, 2)
    ]
    said = e42_switching.section(batch)
    assert "| W2, 2 devices, start | 10.0 (2) | 0.90 [0.90, 0.90] |" in said
    assert "| W3, 2 devices, start | 10.0 (2) | **1.60 [1.60, 1.60]** |" in said
    assert said.count("cannot") == 2  # the others were not run
    assert "Ablations" not in said
    assert "loads alone take" not in said  # with one model there is nothing to bound
    assert [each.met for each in e42_switching.figures(batch)] == [True, False]

    few = [
        row(s, workflow="W3", devices=1, system=system, seed=seed)
        for system, s in ((KAIROS, 60.0), ("topological", 62.0))
        for seed in (1, 2)
    ]
    said = e42_switching.section(few)
    assert "W3, 1 device, start: loads alone take 48 s, and the best of all placements" in said

    base = SwitchingRun(workflow="W5", devices=1, rows=40, loads="sleep", per_s=1.6)
    online = [
        SwitchingRow(commit="c", run=replace(e43_online.as_system(base, system), seed=seed), s=s)
        for system, s in ((KAIROS, 40.0), (e43_online.COME, 200.0), (e43_online.BATCHES, 50.0))
        for seed in (1, 2)
    ]
    assert "**5.0 [5.0, 5.0]** | 1.2 [1.2, 1.2]" in e43_online.section(online)
    [figure] = e43_online.figures(online)
    assert (figure.value, figure.met) == (pytest.approx(5.0), True)


@pytest.mark.long
@pytest.mark.parametrize("devices", [1, 2])
def test_no_batch_is_quicker_than_loads_alone_and_none_much_quicker_than_the_best_placement(
    devices,
):
    asked = SwitchingRun(workflow="W5", devices=devices, rows=60)
    took = run(asked).simulated_s
    assert loads_alone_s(asked) < took
    assert loads_alone_s(asked) < best_placement_s(asked) < 1.1 * took


def test_reduced_grids_are_of_a_few_small_runs():
    for study in (e42_switching, e43_online):
        runs = list(study._runs(quick=True))
        assert len(runs) < 50
        assert max(each.rows for each in runs) <= 60
