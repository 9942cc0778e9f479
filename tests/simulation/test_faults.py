"""The verdict on calls that fail, where the truth is known.

The whole table: `python -m tests.simulation.faults`.
"""

import pytest

from kairos.core import MAX_RETRIES
from tests.simulation.faults import WORLDS, Callers

CALLS = 800


@pytest.mark.parametrize("world", WORLDS, ids=lambda world: world.name)
def test_no_call_is_refused_for_failures_and_no_sound_instance_left_alone(world):
    tally = Callers(world, 1).play(CALLS)

    assert tally.sound + tally.poisonous == CALLS
    assert tally.condemned == 0
    if tally.poisonous:
        assert tally.tries <= (MAX_RETRIES + 1) * tally.poisonous
    if "two instances" not in world.name:
        assert tally.opened <= 1
