"""`python -m bench.placement --quick`, in this process: what it measures must make sense."""

import pytest
from rich.console import Console

from bench import placement
from bench.placement_overload import Overload
from bench.placement_pool import Pool, Size
from kairos.dispatcher.available import AvailableInstances
from kairos.dispatcher.placements import PLACEMENTS

SIZE = placement.QUICK.size


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


@pytest.mark.long
def test_figures_are_positive_and_ordered(figures):
    for name, figure in figures.items():
        for measure in placement.MEASURES:
            spread = figure.detail[measure]
            assert 0 < spread.lowest <= spread.median <= spread.highest, name
        assert figure.detail["p50"].median <= figure.detail["p99"].median, name


@pytest.mark.parametrize("rooms", placement.ROOMS)
def test_there_is_room_where_it_is_said(rooms):
    pool = Pool(SIZE, rooms, 0, prefixes=True)
    made = PLACEMENTS["least-kv"](pool.ledger)
    chosen = set()
    for _ in range(40):
        where, call = pool.next_end(), pool.calls.next(pool.at)
        found = AvailableInstances(
            pool.ledger.served.serving(None), pool.ledger, made, pool.at
        ).choose(call.request)
        chosen.add(None if found is None else int(found.id[-1]) % 2)
        pool.begin(call, where)
    assert chosen == {"all": {0, 1}, "half": {0}, "none": {None}}[rooms]
    assert len(pool.ledger) == SIZE.instances * SIZE.running
    assert all(pool.ledger.running(each) == SIZE.running for each in pool.ledger.instances)


def test_as_many_requests_wait_from_the_first_to_the_last():
    crowded = Overload(Size(2, 10), 15, PLACEMENTS["least-kv"], 0)
    in_vain, fruitful = crowded.ends(60)
    assert len(in_vain) + len(fruitful) == 60
    assert in_vain
    assert fruitful
    assert abs(crowded.waiting - 15) <= 2
