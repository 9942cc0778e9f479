"""Calls that kill engines cost others little: the same world with them and without.

Nobody is held back for long on a suspicion, so where many calls were in flight when an engine died
a killer among them may have a third engine, and where there are but two it may have both.
"""

from statistics import mean

import msgspec
import pytest

from tests.simulation.killers import WORLDS, Pool

SEED = 7
VILLAINS = [each for each in WORLDS if each.body is not None and each.instances <= 4]


@pytest.mark.parametrize("world", VILLAINS, ids=lambda each: each.name)
def test_others_do_not_notice_a_villain(world):
    told = Pool(world, SEED).play()
    without = Pool(msgspec.structs.replace(world, body=None), SEED).play()

    assert mean(told.latencies_s) < 1.5 * mean(without.latencies_s)
    assert told.failed <= 2 * world.callers  # had bytes of an answer when an engine died
    known = {"call_breaks_engines", "caller_breaks_engines"}
    villains = sum(told.villains.values())
    assert sum(told.villains.get(each, 0) for each in known) > villains / 2
    if world.instances > 2:
        assert told.most_down < world.instances
        assert told.refused <= 1


def test_one_body_kills_two_engines():
    assert Pool(WORLDS[1], SEED).play().deaths == 2


def test_the_same_seed_gives_the_same():
    assert Pool(WORLDS[2], SEED).play() == Pool(WORLDS[2], SEED).play()
