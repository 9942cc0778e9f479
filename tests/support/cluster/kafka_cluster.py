"""A real cluster with two topics of a test's own, and processes that relay between them."""

import asyncio
import contextlib
import random
import secrets
import sys
from collections import Counter

from kairos.cluster import ReceivedMessage, ensure_topics
from kairos.cluster.kafka.cluster import parse_bus
from kairos.cluster.kafka.items import CaughtUp
from kairos.cluster.kafka.subscription import Subscription
from kairos.core import Message, Topic
from kairos.host import start_child
from tests.support.buses import TIMEOUT_S, consuming


class Cluster:
    """A cluster, with two topics of this test's own."""

    def __init__(self, url):
        self.url = url
        self.connection = parse_bus(url)
        name = f"{Topic.AGENTS}{secrets.token_hex(4)}"
        self.source, self.sink = f"{name}.in", f"{name}.out"

    async def prepare(self):
        await ensure_topics(self.connection, [self.source, self.sink, Topic.DEAD_LETTERS])
        return self

    async def sunk(self, values, limit_s=TIMEOUT_S):
        """What is on the sink once all of the values are, and nothing that is under way."""
        came = Counter()
        async with asyncio.timeout(limit_s), Subscription(self.connection, [self.sink]) as sink:
            while not set(values) <= set(came):
                came.update(values_of(await sink.batch()))
        async with asyncio.timeout(TIMEOUT_S), Subscription(self.connection, [self.sink]) as sink:
            came, reading = Counter(), 8
            while reading:
                items = await sink.batch()
                came.update(values_of(items))
                reading -= sum(isinstance(item, CaughtUp) for item in items)
        return came

    async def relay(self, message: Message):
        await asyncio.sleep(random.uniform(0, 0.01))
        return [(self.sink, Message(key=message.key, value=message.value))]

    def consuming(self, bus, handler=None):
        handler = handler or self.relay
        return consuming(bus, handler, topic=self.source, group=self.source, concurrency=8)

    @contextlib.asynccontextmanager
    async def worker(self, *, slow_s=2):
        process = await start_child(
            *(sys.executable, "-m", "tests.support.cluster.kafka_worker"),
            *(self.url, self.source, self.sink, str(slow_s)),
            stdout=asyncio.subprocess.PIPE,
        )
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
            process._transport.close()


def values_of(items):
    return [item.value.decode() for item in items if isinstance(item, ReceivedMessage)]


async def publish(bus, cluster, values, *, pause_s=0.0):
    for value in values:
        key = f"k{secrets.randbelow(50)}"
        await bus.publish(cluster.source, Message(key=key, value=value.encode()))
        if pause_s:
            await asyncio.sleep(pause_s)
