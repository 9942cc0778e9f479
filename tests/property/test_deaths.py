"""Whichever messages kill their process, and whatever is in hand beside them: each is dead after
three deaths, and all others are done, once. Deaths of which no message is to blame bury nothing."""

import asyncio
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kairos.live.kafka import consumption
from tests.support.mortal import Cluster, Process

pytestmark = pytest.mark.timeout(300)

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
    monkeypatch.setattr(consumption, "_LEAVE_S", 0.005)


@settings(max_examples=100, deadline=None)
@given(data=st.data(), partitions=clusters(), concurrency=st.integers(1, 9))
def test_what_kills_is_dead_after_three_deaths_and_all_others_are_done(
    data, partitions, concurrency
):
    values = values_of(partitions)
    killers = data.draw(st.sets(st.sampled_from(values), min_size=1, max_size=3))
    turns = data.draw(st.fixed_dictionaries({each: st.integers(0, 30) for each in values}))
    killed = Counter()

    async def handle(process, value):
        await wait(turns[value])
        if value in killers:
            killed[value] += 1
            process.die()
            await asyncio.Event().wait()

    async def run():
        cluster = Cluster(partitions)
        for _ in range(PATIENCE):
            if not await Process(cluster, handle, concurrency).live():
                return cluster
        raise AssertionError(f"it dies for ever: {killed}")

    cluster = asyncio.run(run())
    assert set(cluster.dead) == killers
    assert cluster.sent == Counter(set(values) - killers)
    assert max(killed.values()) <= 3 + 2 * (len(killers) - 1)
    if len(killers) == 1:
        assert killed.total() == cluster.lives - 1 == 3


@settings(max_examples=100, deadline=None)
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
