"""Processes that die, and a cluster that knows how far they came: without Kafka, in no time."""

import asyncio
from collections import Counter, defaultdict

from kairos.cluster import ReceivedMessage
from kairos.cluster.kafka.items import Assigned, Passed
from kairos.cluster.kafka.kafka_bus import Consumption
from kairos.cluster.kafka.trials import Trials
from kairos.core import Topic
from tests.support.buses import text

LIMIT_S = 60


class Cluster:
    """Its partitions, what was committed, and what went out."""

    def __init__(self, partitions):
        """`partitions`: of each, by topic and number, the keys and values of its messages."""
        self.partitions = partitions
        self.committed = {}
        self.sent = Counter()
        self.dead = {}  # why, by value
        self.alive = set()  # marks
        self.lives = 0

    @property
    def is_done(self):
        """Whether each group is at the end."""
        ends = {where: len(messages) for where, messages in self.partitions.items()}
        return all(self.committed.get(where, (0, ""))[0] == end for where, end in ends.items())


class Process:
    """One life. It has all partitions, those of each topic in a group of their own."""

    def __init__(self, cluster, handle, concurrency):
        """`handle` is called with this process and a value."""
        cluster.lives += 1
        self.mark = f"life-{cluster.lives}"
        self.cluster = cluster
        self.in_hand = set()
        self.died = asyncio.Event()
        self.is_cut_off = False
        self._handle, self._concurrency = handle, concurrency

    def die(self):
        self.died.set()
        self.cluster.alive.discard(self.mark)

    async def live(self):
        """Until all is done, or it dies. Return whether it died."""
        self.cluster.alive.add(self.mark)
        by_topic = defaultdict(list)
        for where in self.cluster.partitions:
            by_topic[where[0]].append(where)
        trials = Trials()
        running = [
            asyncio.create_task(self._consume(topic, own, trials))
            for topic, own in by_topic.items()
        ]
        try:
            async with asyncio.timeout(LIMIT_S):
                while not (self.died.is_set() or self.cluster.is_done):
                    await asyncio.sleep(0)
                    assert not any(each.done() for each in running), running
        finally:
            has_died = self.died.is_set()
            for each in running:
                each.cancel()
            await asyncio.gather(*running, return_exceptions=True)
            self.cluster.alive.discard(self.mark)
        return has_died

    async def _consume(self, topic, own, trials):
        member = Member(self, own)
        await Consumption(member, member, topic, self.handle, self._concurrency, trials).run()

    async def handle(self, message):
        value = text(message)
        self.in_hand.add(value)
        try:
            await self._handle(self, value)
        finally:
            self.in_hand.discard(value)
        return [("out", message)]


class Member:
    """A subscription and its transactions, as one process has them. The dead do nothing more."""

    def __init__(self, process, partitions):
        self.holder = process.mark
        self.members = self
        self._process, self._cluster = process, process.cluster
        self._items = []
        for where in partitions:
            at, metadata = self._cluster.committed.get(where, (0, ""))
            self._items.append(Assigned(*where, at, metadata))
            messages = self._cluster.partitions[where]
            for offset, (key, value) in [*enumerate(messages)][at:]:
                came = ReceivedMessage(*where, offset, 0, key, value.encode(), {})
                self._items.append(came)
            self._items.append(Passed(*where, len(messages)))

    async def batch(self):
        if not self._items:
            await asyncio.Event().wait()
        items, self._items = self._items[:3], self._items[3:]
        return items

    def hold(self, is_held):
        pass

    def group_metadata(self):
        return "metadata"

    async def is_alive(self, holder):
        await asyncio.sleep(0)
        return holder in self._cluster.alive

    async def end(self, where):
        return len(self._cluster.partitions[where])

    async def commit(self, offsets):
        await self.perform((), offsets, "metadata")

    async def committed(self, partitions):
        return {where: self._cluster.committed[where] for where in partitions}

    async def perform(self, outgoing, offsets, group_metadata):
        await asyncio.sleep(0)
        if self._process.died.is_set() or self._process.is_cut_off:
            await asyncio.Event().wait()
        self._cluster.committed.update(offsets)
        for topic, message in outgoing:
            if topic == Topic.DEAD_LETTERS:
                self._cluster.dead[text(message)] = message.headers["kairos-dead-reason"]
            else:
                self._cluster.sent[text(message)] += 1
