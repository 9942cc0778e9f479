"""A call that kills engines costs others next to nothing: the same world with it and without."""

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
    assert told.most_down <= world.instances // 2
    assert told.refused <= 1
    assert told.failed <= world.callers  # had bytes of an answer when the first engine died
    assert set(told.villains) <= {"breaks_engines", "call_breaks_engines", "caller_breaks_engines"}


def test_one_body_kills_two_engines():
    assert Pool(WORLDS[1], SEED).play().deaths == 2


def test_the_same_seed_gives_the_same():
    assert Pool(WORLDS[2], SEED).play() == Pool(WORLDS[2], SEED).play()
