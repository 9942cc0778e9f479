"""`python -m bench.placement --quick`, in this process: what it measures must make sense."""

import pytest
from rich.console import Console

from bench import placement
from kairos.core import PLACEMENTS


@pytest.fixture(scope="module")
def figures():
    return {each.name: each for each in placement.measure(Console(quiet=True), quick=True)}


@pytest.mark.long
def test_every_placement_is_measured_and_ours_in_every_case(figures):
    of = {name: [each for each in figures if f": {name} over" in each] for name in PLACEMENTS}
    decisions = {name: [each for each in of[name] if "decision" in each] for name in of}
    cases = len(placement.ROOMS) * len(placement.PREFIXES)
    assert len(decisions["kairos"]) == cases + len(placement.QUICK.smaller)
    assert all(len(decisions[name]) == len(placement.ROOMS) for name in of if name != "kairos")
    assert [each.target for name, each in figures.items() if " 1 instances" in name] == [60]
    assert any("nothing fits" in each for each in of["kairos"])
    assert any("something goes" in each for each in of["kairos"])
