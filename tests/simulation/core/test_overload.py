"""More work than the pool can do, and a queue with an end: whose calls are refused."""

import pytest

from tests.simulation.core.overload import ran, without_claims

SEEDS = range(3)


@pytest.mark.interpreted
@pytest.mark.parametrize("policy", ["kairos", "fcfs"])
def test_workflows_under_way_are_brought_to_their_end_before_others_begin(policy):
    kept = [ran(seed, load=2, policy=policy) for seed in SEEDS]
    with without_claims():
        lost = [ran(seed, load=2, policy=policy) for seed in SEEDS]

    for (whole, wasted, _), (whole_without, wasted_without, _) in zip(kept, lost, strict=True):
        assert whole > whole_without
        assert wasted < 0.1 < 0.15 < wasted_without
    gain = sum(each[0] for each in kept) / sum(each[0] for each in lost)
    assert gain > 1.08, gain


@pytest.mark.interpreted
def test_where_the_queue_does_not_fill_it_changes_nothing():
    _, _, log = ran(0, load=0.8, policy="kairos")
    with without_claims():
        assert ran(0, load=0.8, policy="kairos")[2] == log
