"""A message that kills every process that handles it, on a real Kafka: after three deaths it is a
dead letter, and whatever was in hand beside it is done."""

import asyncio
import time
from collections import Counter
from contextlib import asynccontextmanager

import pytest

from kairos.live.kafka.kafka_bus import KafkaBus
from kairos.live.kafka.subscription import CaughtUp, ReceivedMessage, Subscription
from kairos.ports import Message
from kairos.topics import DEAD_LETTERS
from tests.support.buses import TIMEOUT_S
from tests.support.kafka_cluster import Cluster

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(240)]


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
        task = asyncio.create_task(self._supervise())
        try:
            yield self
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

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
        Subscription(cluster.connection, [DEAD_LETTERS]) as subscription,
    ):
        while not is_read:
            for item in await subscription.batch():
                if isinstance(item, ReceivedMessage):
                    found.append(item)
                is_read |= isinstance(item, CaughtUp)
    return [each for each in found if each.headers["kairos-dead-topic"] == cluster.source]


async def test_it_is_a_dead_letter_after_three_deaths_and_all_others_are_done(cluster):
    others = [f"{n}" for n in range(60)] + [f"slow {n}" for n in range(6)]
    async with KafkaBus(cluster.connection) as bus:
        await send(bus, cluster, *others[:30], *others[60:])
        await send(bus, cluster, "die", "after", key="k")
        await send(bus, cluster, *others[30:60])
        async with Supervisor(cluster).supervising() as supervisor:
            came = await cluster.sunk([*others, "after"])
            await send(bus, cluster, "later", key="k")
            came = await cluster.sunk([*others, "after", "later"])
    assert len(supervisor.deaths) == 3
    assert came == Counter([*others, "after", "later"])
    [letter] = await letters(cluster)
    assert letter.value == b"die"
    assert letter.headers["kairos-dead-reason"].startswith("ProcessDied: ")
    assert letter.headers["kairos-dead-group"] == cluster.source
