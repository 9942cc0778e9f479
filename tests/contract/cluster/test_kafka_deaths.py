"""A message that kills every process that handles it, on a real Kafka: after three deaths it is a
dead letter, and whatever was in hand beside it is done."""

import asyncio
import time
from collections import Counter
from contextlib import asynccontextmanager

import pytest

from kairos.cluster import KafkaBus, ReceivedMessage
from kairos.cluster.kafka.items import Assigned, CaughtUp
from kairos.cluster.kafka.subscription import Subscription
from kairos.core import Message, Topic
from tests.support.buses import TIMEOUT_S
from tests.support.cluster.kafka_cluster import Cluster

# What one death costs at most, on a busy machine: a process that starts, the session of the one
# before it, and the transaction that this left open.
DEATH_S = 40

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(8 * DEATH_S)]


@pytest.fixture
async def cluster(kafka):
    return await Cluster(kafka).prepare()


class Supervisor:
    """Starts a worker again whenever it has died."""

    def __init__(self, cluster):
        self.deaths = []  # when
        self._cluster = cluster

    @asynccontextmanager
    async def supervising(self):
        """A worker that ends in another way than by such a message fails the test at once."""
        async with asyncio.TaskGroup() as tasks:
            task = tasks.create_task(self._supervise())
            yield self
            task.cancel()

    async def _supervise(self):
        while True:
            async with self._cluster.worker() as worker:
                assert await worker.wait() == 9
            self.deaths.append(time.monotonic())


async def send(bus, cluster, *values, key=None):
    for value in values:
        await bus.publish(cluster.source, Message(key=key or value, value=value.encode()))


async def letters(cluster):
    """The dead letters of this test's topic."""
    found, is_read = [], False
    async with (
        asyncio.timeout(TIMEOUT_S),
        Subscription(cluster.connection, [Topic.DEAD_LETTERS]) as subscription,
    ):
        while not is_read:
            for item in await subscription.batch():
                if isinstance(item, ReceivedMessage):
                    found.append(item)
                is_read |= isinstance(item, CaughtUp)
    return [each for each in found if each.headers.get("kairos-dead-topic") == cluster.source]


async def partitions_of(cluster, *values):
    """Where the source has them."""
    found = {}
    async with (
        asyncio.timeout(TIMEOUT_S),
        Subscription(cluster.connection, [cluster.source]) as source,
    ):
        while not found.keys() >= set(values):
            came = [item for item in await source.batch() if isinstance(item, ReceivedMessage)]
            found |= {each.value: each.partition for each in came if each.value in values}
    return set(found.values())


async def test_two_of_them_in_two_partitions_are_dead_letters_and_nothing_else_is(cluster):
    others = [f"{n}" for n in range(40)] + ["slow 1", "slow 2"]
    async with KafkaBus(cluster.connection) as bus:
        await send(bus, cluster, "die 1", "die 3", *others)
        assert len(await partitions_of(cluster, b"die 1", b"die 3")) == 2
        async with Supervisor(cluster).supervising() as supervisor:
            await cluster.sunk(others, 5 * DEATH_S)
            async with asyncio.timeout(5 * DEATH_S):
                while len(dead := await letters(cluster)) < 2:
                    await asyncio.sleep(0.2)
            came = await cluster.sunk(others)
    assert came == Counter(others)
    assert {letter.value for letter in dead} == {b"die 1", b"die 3"}
    assert len(supervisor.deaths) <= 5


async def test_processes_that_are_killed_from_outside_bury_nothing(cluster):
    """Twice amid the same messages. Then all is as if nobody had died."""
    slow = [f"slow {n}" for n in range(6)]
    others = [f"{n}" for n in range(40)]
    async with KafkaBus(cluster.connection) as bus:
        await send(bus, cluster, *slow, *others)
        for _ in range(2):
            async with cluster.worker(slow_s=3_600) as worker:
                await cluster.sunk(others)
                in_hand = set()
                async with asyncio.timeout(DEATH_S):
                    while len(in_hand) < len(slow):
                        in_hand.add(await worker.stdout.readline())
                worker.kill()
                await worker.wait()
        async with cluster.worker() as worker:
            came = await cluster.sunk([*slow, *others])
            worker.terminate()  # it leaves in order
            await worker.wait()
        known = await committed(cluster)
    assert came == Counter([*slow, *others])
    assert await letters(cluster) == []
    assert not any(field in text for text in known for field in ("deaths", "suspects", "held"))


async def committed(cluster):
    """The metadata of each partition."""
    async with (
        asyncio.timeout(TIMEOUT_S),
        Subscription(cluster.connection, [cluster.source], cluster.source) as group,
    ):
        assigned = []
        while len(assigned) < 8:
            assigned += [each for each in await group.batch() if isinstance(each, Assigned)]
    return [each.metadata for each in assigned]


@pytest.mark.smoke
async def test_it_is_a_dead_letter_after_three_deaths_and_all_others_are_done(cluster):
    others = [f"{n}" for n in range(60)] + [f"slow {n}" for n in range(6)]
    async with KafkaBus(cluster.connection) as bus:
        await send(bus, cluster, *others[:30], *others[60:])
        await send(bus, cluster, "die", "after", key="k")
        await send(bus, cluster, *others[30:60])
        async with Supervisor(cluster).supervising() as supervisor:
            came = await cluster.sunk([*others, "after"], 3 * DEATH_S)
            await send(bus, cluster, "later", key="k")
            came = await cluster.sunk([*others, "after", "later"])
    assert len(supervisor.deaths) == 3
    assert came == Counter([*others, "after", "later"])
    [letter] = await letters(cluster)
    assert letter.value == b"die"
    assert letter.headers["kairos-dead-reason"].startswith("ProcessDied: ")
    assert letter.headers["kairos-dead-group"] == cluster.source
