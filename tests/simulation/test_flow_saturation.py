"""H12: what rate of rows devices keep up with, whether they switch models or are fixed to one."""

from functools import cache
from itertools import pairwise

import pytest
from msgspec.structs import replace

from experiments.e43_online import COME, as_system
from experiments.switching import KAIROS, SwitchingRun, run

RATES = (0.2, 1.0, 5.0, 25.0)  # rows a second
KEPT_UP_WITH = 0.85  # of the rate: the last row ends a few seconds after it has come


@cache
def curve(system, devices):
    """Rows a second that ended, by rate, and the loads."""
    ended, loads = {}, {}
    for rate in RATES:
        rows = max(20, min(60, round(60 * rate)))
        base = SwitchingRun(
            workflow="W5", devices=devices, rows=rows, per_s=rate, loads="sleep"
        )  # fmt: skip
        asked = replace(base, system=system) if system == "fixed" else as_system(base, system)
        ran = run(asked)
        assert ran.figures.written == rows
        ended[rate], loads[rate] = rows / ran.simulated_s, ran.loads
    return ended, loads


SYSTEMS = [(KAIROS, 1), (KAIROS, 2), ("fixed", 2), (COME, 1), (COME, 2)]


@pytest.mark.parametrize(("system", "devices"), SYSTEMS)
def test_h12_throughput_rises_with_the_rate_to_saturation_and_stays_there(system, devices):
    ended, _ = curve(system, devices)
    assert all(more >= 0.97 * less for less, more in pairwise(ended.values())), ended
    assert ended[25.0] == pytest.approx(ended[5.0], rel=0.15)  # saturated: it goes no higher


def test_h12_devices_that_switch_keep_up_with_a_rate_at_which_a_topological_scheduler_is_behind():
    for devices in (1, 2):
        ours, theirs = curve(KAIROS, devices)[0], curve(COME, devices)[0]
        assert ours[0.2] >= KEPT_UP_WITH * 0.2
        assert max(ours.values()) >= 4 * max(theirs.values()), (ours, theirs)
    assert curve(KAIROS, 2)[0][1.0] >= KEPT_UP_WITH
    assert curve(COME, 2)[0][1.0] < 0.5


def test_h12_with_a_device_for_each_model_those_that_may_switch_saturate_as_high_as_fixed_ones():
    ours, loads = curve(KAIROS, 2)
    fixed, fixed_loads = curve("fixed", 2)
    assert all(ours[rate] >= 0.99 * fixed[rate] for rate in RATES)
    assert loads == fixed_loads == dict.fromkeys(RATES, 2)
