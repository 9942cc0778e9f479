"""Calls that are moved without need, and stalls that are noticed, where the truth is known.

The whole table: `python -m tests.simulation.simulate.pace`.
"""

import pytest

from kairos.core import SECOND
from tests.simulation.simulate.pace import PENDING_US, WORLDS, courses

SECONDS = 120


@pytest.mark.parametrize("world", WORLDS, ids=lambda world: world.name)
def test_no_call_is_moved_without_need_and_none_waits_at_an_engine_that_hangs(world):
    well, lost, hung = courses(world, range(1), SECONDS)

    assert well.alarms == lost.alarms == hung.alarms == 0
    assert hung.pending == 0
    assert max(hung.noticed_us, default=0) < PENDING_US
    assert hung.noticed_us or world.callers == 1  # whose only call may have begun


def test_of_quick_calls_those_that_are_lost_are_missed_in_seconds():
    world = next(each for each in WORLDS if each.name == "quick calls")
    _, lost, _ = courses(world, range(1), SECONDS)

    assert len(lost.noticed_us) > 50
    assert sum(lost.noticed_us) / len(lost.noticed_us) < 6 * SECOND
