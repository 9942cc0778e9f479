"""The compiled kernel and numpy come to the same: forecasts to a rounding, choices exactly."""

from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kairos.core import SECOND, Finished, Instance, InstanceStatus, Ledger, WorkEstimates
from kairos.core.dispatcher.native import KERNEL, NOWHERE, RESERVED_PLACE
from kairos.core.dispatcher.survival_packing import SurvivalPacking
from tests.support.core import kernel
from tests.support.examples import examples
from tests.support.simulate import build

START = 3_600 * SECOND


pytestmark = [pytest.mark.both, pytest.mark.usefixtures("kernel")]


class Pool:
    """Calls begin, grow and end on a few instances, as a seed says, before both ways to choose.

    Each way has a ledger of its own, told the same: a curve is drawn again when a way looks at a
    request, so one that looked later at an instance would see what the other has drawn since."""

    def __init__(self, seed: int, instances: int) -> None:
        self.random, self.at = Random(seed), START
        self.estimates = WorkEstimates()
        self.ledgers = Ledger(self.estimates), Ledger(self.estimates)
        self.ledger = self.ledgers[0]
        self.ways = tuple(map(SurvivalPacking, self.ledgers, (None, KERNEL)))
        self.running: list[tuple[str, str]] = []
        self.waits = self.refused = 0
        self.asked = []  # requests that are looked at together, again and again
        for number in range(instances):
            self.tell("add_instance", self.instance(number))

    def tell(self, what: str, *told) -> None:
        for ledger in self.ledgers:
            getattr(ledger, what)(*told)

    def instance(self, number: int) -> Instance:
        draw = self.random.choice
        return Instance(
            id=f"i{number}",
            models=(),
            max_num_seqs=draw([4, 64]),
            kv_tokens=draw([None, 6_000, 8_000, 12_000]),
            max_num_batched_tokens=draw([None, 2_048]),
        )

    def request(self, number: int):
        draw = self.random
        own = draw.randrange(4)
        tokens = draw.randrange(10, 4_000)
        return build.request(
            f"r{number}",
            prompt=tokens,
            agent=draw.choice("ab"),
            prefix=tuple(hash((own, mark)) for mark in range(draw.randrange(6))),
            prefix_units=tokens,
            completion_limit=draw.choice([None, 16, 1_000]),
            at=self.at,
        )

    def step(self, number: int) -> None:
        self.at += self.random.randrange(1, SECOND)
        request = self.request(number)
        here = list(self.ledger.instances.values())
        busy = self.ledger.busy.ids(self.at)
        able = [each for each in here if each.id not in busy]
        if self.random.random() < 0.5:
            other = self.request(-number - 1)
            for way in self.ways:
                way.reserve(other, able or here, self.at)
            if not self.reserved_alike():
                for way in self.ways:
                    way.forget_reservation()
        if able:
            rooms = [way.headroom(able, self.at) for way in self.ways]
            assert rooms[0] == pytest.approx(rooms[1], rel=1e-9, abs=1e-6)
            others = [each for each in here if each.id in busy]
            self.look_at_many(number, able, others)
            numpys, kernels = [way.choose(request, able, others, self.at) for way in self.ways]
            assert numpys == kernels
            assert self.ways[0]._warm == self.ways[1]._warm
            self.waits += self.ways[0]._warm is not None
            if numpys is not None:
                self.tell("book", request, numpys.id, self.at)
                self.running.append((request.id, numpys.id))
        for way in self.ways:
            way.forget_reservation()
        self.go_on()

    def reserved_alike(self) -> bool:
        """Return whether both keep the same room.

        A forecast is used again for a while, unless a curve was drawn since: one may be older.
        """
        numpys, kernels = (way for way in self.ways)
        if numpys._reserved is None or kernels._compiled._reserved_row == NOWHERE:
            return (numpys._reserved is None) == (kernels._compiled._reserved_row == NOWHERE)
        kept = numpys._reserved[1]
        place = RESERVED_PLACE + 8 * len(kept)
        also = np.frombuffer(bytes(kernels._compiled._asked.bytes[RESERVED_PLACE:place]))
        return np.allclose(kept, also, rtol=1e-9, atol=1e-6)

    def look_at_many(self, number: int, able: list[Instance], busy: list[Instance]) -> None:
        """Those that the kernel refuses together go nowhere by numpy either, and the same of them
        wait. The first that it does not refuse is one for which it had to draw a curve, or goes."""
        numpys, kernels = self.ways
        if number % 4 == 0:
            self.asked = [self.request(1_000 * number + n) for n in range(1, 5)]
        requests = self.asked
        chosen = [numpys.choose(each, able, busy, self.at) for each in requests]
        goes = [each is not None for each in chosen]
        refused, next_goes_to = kernels.refused(requests, able, busy, self.at)
        assert not any(goes[:refused])
        assert next_goes_to is None or next_goes_to == chosen[refused]
        wanted = kernels._compiled._wanted
        if all(wanted.at(each, self.at, draws=False) for each in requests):
            assert refused == [*goes, True].index(True)
            assert (next_goes_to is not None) == any(goes)
        known = refused + (next_goes_to is not None)
        rest = [kernels.choose(each, able, busy, self.at) for each in requests[known:]]
        assert [each is not None for each in rest] == goes[known:]
        waits = [[each.id for each in requests if each.id in way._waits] for way in self.ways]
        assert waits[0] == waits[1]
        self.refused += refused
        self.waits += len(waits[0])

    def go_on(self) -> None:
        draw = self.random
        for request_id, instance_id in list(self.running):
            chance = draw.random()
            if chance < 0.4:
                self.tell("record_first_token", request_id, self.at)
            elif chance < 0.6:
                self.tell("record_progress", {request_id: draw.randrange(1, 600)}, self.at)
            elif chance < 0.75:
                tokens = draw.randrange(1, 800)
                request = self.ledger.booking(request_id).request
                ended = Finished(request_id, completion_tokens=tokens)
                self.tell("release_booking", request_id, self.at, ended)
                self.estimates._answers.learn_answer(request, tokens)
                self.running.remove((request_id, instance_id))
        if draw.random() < 0.3:
            where = draw.choice(list(self.ledger.instances))
            used, waits = draw.random(), draw.choice([0, 3])
            self.tell("record_status", InstanceStatus(where, kv_used=used, waiting=waits), self.at)
        if draw.random() < 0.05:
            number = draw.randrange(8)
            self.tell("add_instance", self.instance(number))


@examples(60)
@given(seed=st.integers(0, 2**32), instances=st.integers(1, 6))
def test_both_choose_the_same_instance_after_any_facts(seed, instances):
    pool = Pool(seed, instances)
    for number in range(60):
        pool.step(number)


def test_both_forget_how_quick_an_instance_was_that_left_and_is_back():
    pool = Pool(0, 0)
    known = [
        Instance(id=each, models=(), max_num_seqs=64, kv_tokens=12_000) for each in ("i0", "i1")
    ]
    for each in known:
        pool.tell("add_instance", each)
        running = build.request(f"on {each.id}", prompt=100, at=pool.at)
        pool.tell("book", running, each.id, pool.at)  # so that what is known of it stays
    for ledger in pool.ledgers:
        for number in range(500):  # i0 is slow, as it is told now and then
            slow = number % 10 == 0
            speed = ledger.served.speeds["i0" if slow else "i1"]
            speed.token_took(75_000 if slow else 25_000, 1)
        assert ledger.served.speeds["i0"].times > 1.0 == ledger.served.speeds["i1"].times

    request = pool.request(1)
    assert [way.choose(request, known, (), pool.at) for way in pool.ways] == [known[1]] * 2

    pool.tell("remove_instance", "i0")
    pool.tell("add_instance", known[0])
    assert [way.choose(request, known, (), pool.at) for way in pool.ways] == [known[0]] * 2


@examples(40)
@given(seed=st.integers(0, 2**32))
def test_both_expect_the_same_of_every_slot(seed):
    pool = Pool(seed, 3)
    for number in range(30):
        pool.step(number)
        expect_the_same(pool)


def expect_the_same(pool: Pool) -> None:
    numpys, kernels = pool.ways
    for each in pool.ledger.instances.values():
        numpys._occupancy.renew([each], pool.at)
        expected = numpys._occupancy.forecasts[:, numpys._table.row(each.id)]
        found = kernel.forecast(kernels, each, pool.at)
        assert np.allclose(expected, found, rtol=1e-9, atol=1e-6)
