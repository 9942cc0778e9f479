"""What was refused is remembered, and nothing is decided otherwise for it."""

from functools import partial
from itertools import count
from random import Random

import numpy as np
import pytest

from kairos.core import (
    PLACEMENTS,
    QUANTILES,
    SECOND,
    Distribution,
    Ledger,
    exponential_distribution,
)
from kairos.core.dispatcher.slots import NoRoom
from kairos.core.dispatcher.survival_packing import SurvivalPacking
from tests.support.simulate import build

# The compiled choice is so quick that it remembers nothing.
REMEMBERING = {
    "time-slot": PLACEMENTS["time-slot"],
    "kairos": partial(SurvivalPacking, kernel=None),
}
A, B = build.instance("a"), build.instance("b")


def always(value):
    return Distribution(value, (value,) * QUANTILES)


MEANS = {"x": 40.0, "y": 300.0, "z": 2.0}  # tokens of answers, by agent
KNOWN = build.Lengths(
    tokens={agent: exponential_distribution(mean) for agent, mean in MEANS.items()},
    latency_us={agent: always(mean * 20_000) for agent, mean in MEANS.items()},
)


def held(*tokens):
    return np.array(tokens, dtype=np.float64)


def test_of_the_same_kind_who_holds_no_less_anywhere_is_refused_too():
    refusals = NoRoom()
    assert not refusals.is_closed((1,), "kind", [A, B])
    refusals.add("kind", [A, B], held(10, 20))

    assert refusals.covers("kind", [A, B], held(10, 20))
    assert refusals.covers("kind", [A, B], held(11, 25))
    assert not refusals.covers("kind", [A, B], held(9, 99))
    assert not refusals.covers("other", [A, B], held(10, 20))
    assert not refusals.covers("kind", [B, A], held(10, 20))


class Pool:
    """Three instances, about full, and requests of all kinds."""

    def __init__(self, seed):
        self._random, self._numbers = Random(seed), count()
        self.ledger = Ledger(KNOWN)
        for name, kv in (("a", 4000), ("b", 6000), ("c", 3000)):
            self.ledger.add_instance(build.instance(name, kv=kv, seqs=99))
        self.instances = list(self.ledger.instances.values())
        self.at = 10 * SECOND

    def request(self):
        random, names = self._random, (1, 2, 3, 4)
        prompt = random.choice([1, 20, 70, 150, 300, 900])
        return build.request(
            f"r{next(self._numbers)}",
            agent=random.choice([*MEANS, "unknown"]),
            prompt=prompt,
            completion=random.choice([30, 400]),
            completion_limit=random.choice([None, 50, 1000]),
            prefix=names[: random.choice([0, 1, 3])] if prompt >= 300 else (),
            prefix_units=prompt,
        )

    def fill(self, share):
        for each in self.instances:
            while self.ledger.held_tokens(each.id, self.at) < share * each.kv_tokens:
                self.ledger.book(self.request(), each.id, self.at)


@pytest.mark.interpreted
@pytest.mark.parametrize("name", ["kairos", "time-slot"])
@pytest.mark.parametrize("seed", range(16))
def test_nothing_is_decided_otherwise_than_without_them(name, seed, monkeypatch):
    pool = Pool(seed)
    pool.fill(0.3 + 0.06 * seed)
    remembers, forgets = (REMEMBERING[name](pool.ledger) for _ in range(2))
    monkeypatch.setattr(forgets, "_refused", Forgetful())
    looked = counted(remembers, monkeypatch), counted(forgets, monkeypatch)
    chosen = []
    for turn in range(6):
        reserved = False
        for _ in range(40):
            request, able = pool.request(), pool.instances
            if request.prompt_tokens < 100:
                able = able[:2]
            found = [each.choose(request, able, [], pool.at) for each in (remembers, forgets)]
            assert found[0] is found[1]
            chosen.append(found[0])
            if found[0] is None and not reserved:
                reserved = True
                for each in (remembers, forgets):
                    each.reserve(request, able, pool.at)
        for each in (remembers, forgets):
            each.forget_reservation()
        if turn % 2:
            pool.at += SECOND // 3
            pool.ledger.book(pool.request(), "b", pool.at)
    if chosen.count(None) > 20:
        assert len(looked[0]) < len(looked[1])


class Forgetful(NoRoom):
    def is_closed(self, state, kind, instances):
        return False

    def covers(self, kind, instances, held):
        return False

    def awaited(self, state, at_most):
        return []


def counted(placement, monkeypatch):
    """A list that is as long as it was often looked closely."""
    looked, loads = [], placement._loads

    def count_and_ask(*arguments):
        looked.append(arguments)
        return loads(*arguments)

    monkeypatch.setattr(placement, "_loads", count_and_ask)
    return looked
