"""The demo's verdict, from the model of its engines."""

import pytest

from kairos.cli.demos import command, gain
from kairos.cli.demos.gain import Gain, simulated_gain
from kairos.core import Interval, SetupError


def found(ratio, policies=("kairos", "fcfs")):
    return Gain(
        policies=policies,
        seeds=30,
        tasks=60,
        instances=1,
        profile="cpu-smollm2",
        seconds={"all": (Interval(2, 1, 3), Interval(3, 2, 4))},
        ratio=ratio,
    )


def test_the_same_setting_gives_the_same_figures_and_its_interval_covers_its_mean(monkeypatch):
    monkeypatch.setattr(gain, "SEEDS", 4)
    told = []

    def compare():
        return simulated_gain(
            "llama",
            ("kairos", "fcfs"),
            "kairos",
            1,
            0.6,
            arrivals="poisson",
            on_progress=told.append,
        )

    once = compare()
    assert compare() == once
    assert once.ratio.low <= once.ratio.mean <= once.ratio.high
    assert once.seconds.keys() == {"qa", "rg", "cg", "all"}
    for pair in once.seconds.values():
        assert all(each.low <= each.mean <= each.high for each in pair)
    assert told[0] == "virtual time: 0 of 4 seeds"


def test_an_unknown_order_is_refused():
    with pytest.raises(SetupError, match="luck"):
        simulated_gain("llama", ("luck", "fcfs"), "kairos", 1, 0.6, arrivals="poisson")


@pytest.mark.parametrize(
    ("ratio", "said"),
    [
        (Interval(0.7, 0.65, 0.75), "Under kairos a task takes 30 % less time than under fcfs"),
        (Interval(1.2, 1.1, 1.3), "Under kairos a task takes 20 % more time than under fcfs"),
        (Interval(0.99, 0.9, 1.1), "kairos and fcfs take as long"),
        (Interval(1.0, 1.0, 1.0), "kairos and fcfs take as long"),
    ],
)
def test_the_verdict_says_which_is_faster_and_only_where_that_is_sure(ratio, said):
    assert command.verdict(found(ratio)).startswith(said)
