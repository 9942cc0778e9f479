"""`python -m bench.brain --quick`, in this process: what it measures must make sense."""

import pytest
from rich.console import Console

from bench import brain


@pytest.fixture(scope="module")
def figures():
    return {each.name: each for each in brain.measure(Console(quiet=True), quick=True)}


@pytest.mark.long
def test_each_pool_is_measured_with_each_placement_and_the_hardest_of_ours_has_the_target(figures):
    rates = [each for each in figures.values() if each.unit == "calls/s"]
    assert len(rates) == len(brain.QUICK.sizes) * len(brain.PLACEMENTS)
    [aimed] = [each for each in figures.values() if each.target is not None]
    assert aimed.better == "higher"
    assert "kairos over 3 instances" in aimed.name


@pytest.mark.long
def test_every_kind_of_fact_of_a_call_has_a_cost(figures):
    for kind in ("Arrived", "FirstToken", "Finished", "WorkflowEnded", "Progressed", "learning"):
        costs = [each for name, each in figures.items() if name.startswith(kind)]
        assert costs, kind
        assert all(each.value > 0 for each in costs), kind
    assert figures[brain.MEMORY].value > 1
