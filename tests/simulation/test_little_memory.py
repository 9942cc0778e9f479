"""The default placement on instances whose memory has room for few calls: little of it is idle."""

from statistics import fmean

import pytest

from experiments.e63_little_memory import run


@pytest.mark.parametrize(
    ("seeds", "count"), [((1,), 250), pytest.param(range(1, 11), 300, marks=pytest.mark.long)]
)
def test_the_default_is_as_quick_as_round_robin_with_a_quarter_of_the_memory(seeds, count):
    def mean_s(placement, seed):
        return run(4, 2.7 / 4, count, placement, seed)["e2e_s"]["mean"]

    ratios = [mean_s("kairos", seed) / mean_s("round-robin", seed) for seed in seeds]

    assert fmean(ratios) < 1.06
