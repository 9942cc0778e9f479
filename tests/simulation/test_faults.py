"""The verdict on calls that fail, where the truth is known.

The whole table: `python -m tests.simulation.faults`.
"""

import pytest

from tests.simulation.faults import WORLDS, Callers

CALLS = 800


@pytest.mark.parametrize("world", WORLDS, ids=lambda world: world.name)
def test_no_sound_call_is_condemned_and_poisonous_ones_are_tried_twice(world):
    tally = Callers(world, 1).play(CALLS)

    assert tally.sound + tally.poisonous == CALLS
    assert tally.condemned <= CALLS / 400
    if tally.poisonous:
        assert tally.tries <= 2.2 * tally.poisonous
    if "two instances" not in world.name:
        assert tally.missed <= tally.poisonous / 20
        assert tally.opened <= 1
