"""Whichever messages kill their process, and whatever is in hand beside them: each is dead after
three deaths, and all others are done, once. Deaths of which no message is to blame bury nothing."""

import asyncio
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kairos.cluster.kafka import kafka_bus, trials
from tests.support.cluster.mortal import Cluster, Process
from tests.support.examples import examples

pytestmark = pytest.mark.both

PATIENCE = 60  # lives


@st.composite
def clusters(draw):
    """Partitions of one topic or two: keys, and values that are all different."""
    partitions, number = {}, 0
    for where in draw(st.sampled_from([[("t", 0)], [("t", 0), ("t", 1)], [("t", 0), ("u", 0)]])):
        keys = draw(st.lists(st.sampled_from("abcdef"), min_size=1, max_size=12))
        partitions[where] = [(key, str(number + n)) for n, key in enumerate(keys)]
        number += len(keys)
    return partitions


def values_of(partitions):
    return [value for messages in partitions.values() for _, value in messages]


async def wait(turns):
    for _ in range(turns):
        await asyncio.sleep(0)


@pytest.fixture(autouse=True)
def no_leave(monkeypatch):
    """Who is dead waits for nothing."""
    monkeypatch.setattr(kafka_bus, "_LEAVE_S", 0.005)


async def survive(partitions, killers, turns, concurrency):
    """Lives until all is done: the cluster, and how often each killer has killed. `turns`: of the
    loop, that each value takes."""
    killed = Counter()

    async def handle(process, value):
        await wait(turns.get(value, 0))
        if value in killers:
            killed[value] += 1
            process.die()
            await asyncio.Event().wait()

    cluster = Cluster(partitions)
    for _ in range(PATIENCE):
        if not await Process(cluster, handle, concurrency).live():
            assert set(cluster.dead) == set(killers)
            assert cluster.sent == Counter(set(values_of(partitions)) - set(killers))
            return cluster, killed
    raise AssertionError(f"it dies for ever: {killed}")


@examples(100)
@given(data=st.data(), partitions=clusters(), concurrency=st.integers(1, 9))
def test_what_kills_is_dead_after_three_deaths_and_all_others_are_done(
    data, partitions, concurrency
):
    values = values_of(partitions)
    killers = data.draw(st.sets(st.sampled_from(values), min_size=1, max_size=3))
    turns = data.draw(st.fixed_dictionaries({each: st.integers(0, 30) for each in values}))
    cluster, killed = asyncio.run(survive(partitions, killers, turns, concurrency))
    assert max(killed.values()) <= 3 + 2 * (len(killers) - 1)
    if len(killers) == 1:
        assert killed.total() == cluster.lives - 1 == 3


async def test_what_kills_at_once_after_another_of_its_key_is_found_too():
    """Though it kills before the dead letter of the first is safe, if it may."""
    partitions = {("t", 0): [("a", "0"), ("a", "1"), ("b", "2"), ("c", "3")]}
    _, killed = await survive(partitions, {"0", "1"}, {}, 3)
    assert killed == {"0": 3, "1": 3}


async def test_what_is_convicted_is_buried_before_another_suspect_of_its_partition_may_kill():
    """Two deaths tell who the suspects are; then one is enough for each that kills."""
    partitions = {("t", 0): [("a", "0"), ("b", "1"), ("c", "2")]}
    cluster, _ = await survive(partitions, {"0", "1"}, {}, 3)
    assert cluster.lives - 1 == 4


async def test_what_kills_is_found_beside_others_that_take_longer_than_trials_may(monkeypatch):
    monkeypatch.setattr(trials, "_LIMIT_S", 0.01)
    partitions = {("t", 0): [(f"{n}", f"{n}") for n in range(6)]}
    slow = {f"{n}": 3_000 for n in range(5)}
    _, killed = await survive(partitions, {"5"}, slow, 6)
    assert 3 <= killed["5"] <= 12


async def test_who_hands_a_partition_on_alive_has_not_died_of_what_it_had_in_hand():
    cluster = Cluster({("t", 0): [("a", "0"), ("b", "1")]})
    begun = asyncio.Event()

    async def hang(_process, _value):
        begun.set()
        await asyncio.Event().wait()

    for _ in range(5):
        begun.clear()
        process = Process(cluster, hang, 2)
        living = asyncio.create_task(process.live())
        await begun.wait()
        process.is_cut_off = True  # it says nothing more of this partition
        living.cancel()
        await asyncio.gather(living, return_exceptions=True)
        cluster.alive.add(process.mark)
    assert "deaths" not in cluster.committed["t", 0][1]


@examples(100)
@given(data=st.data(), partitions=clusters(), concurrency=st.integers(1, 9))
def test_two_deaths_at_any_moment_bury_nothing(data, partitions, concurrency):
    values = values_of(partitions)
    turns = data.draw(st.fixed_dictionaries({each: st.integers(0, 30) for each in values}))
    lives = data.draw(st.lists(st.integers(0, 120), min_size=1, max_size=2))

    async def handle(_process, value):
        await wait(turns[value])

    async def run():
        cluster = Cluster(partitions)
        for life in lives:
            process = Process(cluster, handle, concurrency)
            living = asyncio.create_task(process.live())
            await wait(life)
            process.die()
            await living
        assert not await Process(cluster, handle, concurrency).live()
        return cluster

    cluster = asyncio.run(run())
    assert cluster.dead == {}
    assert cluster.sent == Counter(values)
