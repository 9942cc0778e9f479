"""The studies of the hardware planner: what they say of rows."""

import msgspec
import pytest

from experiments import e34_hardware_pairs, e35_hardware_prediction, e36_hardware_choice


@pytest.mark.long
def test_g9_pairs_are_compared_with_the_papers_baseline():
    rows = [*e34_hardware_pairs.measure(True)]
    base = [row for row in rows if row.pair == e34_hardware_pairs.BASELINE]
    assert len(rows) == 16 * (1 + len(e34_hardware_pairs.PAIRS))
    assert {row.tokens_per_usd for row in base} == {1.0}
    said = e34_hardware_pairs.section(rows)
    assert "| h100::gaudi3 over b200::b200 | about 1, or slightly above | 0.91 to 1.18 |" in said
    assert "figure 9: 4096 in, 512 out, offline" in said
    [figure] = e34_hardware_pairs.figures(rows)
    assert figure.value == pytest.approx(1.02, abs=0.03)


@pytest.mark.long
def test_a_pair_that_is_too_slow_has_no_ratio():
    [slow, *_] = e34_hardware_pairs.measure(True)
    rows = [msgspec.structs.replace(slow, pair="a::b", tokens_per_usd=None)]
    assert e34_hardware_pairs._cell(e34_hardware_pairs._ratio(rows, "a::b")) == "not in time"


PREDICTED = e35_hardware_prediction.Row(
    commit="c",
    device="a40",
    model="m",
    instances=2,
    workload="qa",
    share=0.4,
    per_s=1.0,
    workflows=600,
    predicted_mean_s=1.0,
    simulated_mean_s=1.0,
    predicted_p95_s=1.1,
    simulated_p95_s=1.0,
    predicted_tokens_per_s=100.0,
    simulated_tokens_per_s=80.0,
)


def test_how_far_planner_and_simulation_are_apart_is_counted():
    loaded = msgspec.structs.replace(PREDICTED, share=0.7, predicted_p95_s=1.5)
    beyond = msgspec.structs.replace(PREDICTED, share=0.9, predicted_p95_s=2.0)
    said = e35_hardware_prediction.section([PREDICTED, loaded, beyond])
    assert "P95 is within 20% in 1 of 2 runs (worst 50%)" in said
    assert "throughput is within 15% in 0 of 1 pools (worst 25%)" in said
    assert "| 2 x a40, m | qa | 40% | 1.1 | 1 | +10% | 100 | 80 | +25% |" in said


def test_a_planned_pool_is_set_against_the_best():
    row = e36_hardware_choice.Row(
        commit="c",
        case=e36_hardware_choice.CASES[0],
        planned={"a100": 2},
        planned_usd=1.1,
        planned_p95_s=9.0,
        simulated_p95_s=10.0,
        best={"a40": 1, "a100": 1},
        best_usd=1.0,
        best_p95_s=11.0,
        tried=3,
    )
    none = msgspec.structs.replace(row, best=None, best_usd=None, best_p95_s=None)
    said = e36_hardware_choice.section([row, none])
    assert "at most 5% more than the best in 0 of 2 cases" in said
    assert "| 2 x a100 | 1.10 | 10 | 1 x a100, 1 x a40 | 1.00 | +10% |" in said
    assert "| none |  |  |" in said
    assert e36_hardware_choice.figures([row, none])[0].value == 1.1
    assert e36_hardware_choice.figures([none])[0].value is None


def test_one_pool_is_predicted_and_simulated(monkeypatch):
    monkeypatch.setattr(e35_hardware_prediction, "POOLS", (("h100", "llama-3-8b", 1, "qa"),))
    monkeypatch.setattr(e35_hardware_prediction, "PAIRS", ())
    monkeypatch.setattr(e35_hardware_prediction, "GENERATED", 60)
    for name, value in (("FEWEST", 60), ("MOST", 200), ("MOST_WAITING", 200)):
        monkeypatch.setattr(e35_hardware_prediction, name, value)
    e35_hardware_prediction.workflows.cache_clear()
    low, high = e35_hardware_prediction.measure(True)
    e35_hardware_prediction.workflows.cache_clear()
    assert (low.share, high.share) == e35_hardware_prediction.SHARES
    assert low.predicted_p95_s == pytest.approx(low.simulated_p95_s, rel=0.3)
    assert low.simulated_tokens_per_s > 0
