"""The bus on Kafka: across processes and machines, with messages that survive restarts."""

import asyncio
from collections.abc import Sequence
from typing import Self

from kairos.cluster.kafka.cluster import KafkaCluster
from kairos.cluster.kafka.connectivity import Connectivity
from kairos.cluster.kafka.consumption import Consumption
from kairos.cluster.kafka.producer import Producer, message_bytes
from kairos.cluster.kafka.subscription import Subscription
from kairos.cluster.kafka.transactions import Transactions
from kairos.cluster.kafka.trials import Trials
from kairos.core import Handler, Message, MessageTooLarge, Outgoing, Topic, Unavailable

_AGAIN_S = 0.05


class KafkaBus:
    """The port `Bus`, on Kafka. An async context manager; end all consumers before you leave it.

    Topics must exist (`topic_setup.py`), including that of dead letters. While the cluster cannot
    be reached, everything waits. Handlers run at least once; what they return is published exactly
    once, in one transaction with the commit of the handled message. After a crash within a
    transaction, readers of its topics wait until the cluster aborts it, some 10 to 20 s.

    A message that kills the process that handles it is dead-lettered after three deaths
    (`custody.py`). Attempts count from one again after a crash.
    """

    def __init__(self, cluster: KafkaCluster) -> None:
        self._cluster = cluster
        self._reach = Connectivity(cluster.servers)
        self._producer = Producer(cluster, reach=self._reach)
        self._trials = Trials()

    async def __aenter__(self) -> Self:
        await self._producer.__aenter__()
        return self

    async def __aexit__(self, *raised: object) -> None:
        await self._producer.__aexit__(*raised)

    async def publish(self, topic: str, message: Message) -> None:
        """Publish a message. Raises TopicMissing in addition to the errors of the port."""
        while True:
            try:
                sent = self._producer.send(topic, message.key, message.value, message.headers)
            except Unavailable:
                await asyncio.sleep(_AGAIN_S)  # until some of what waits is sent
            else:
                break
        await sent

    async def consume(
        self, topic: str, group: str, handler: Handler, *, concurrency: int = 1
    ) -> None:
        """Consume a topic until cancelled.

        Raises:
            TopicMissing: The topic, or that of dead letters, does not exist.
            Unavailable: The topic cannot be read, or dead letters cannot be written, permanently.
        """
        for each in (topic, Topic.DEAD_LETTERS):
            await self._producer.require(each)

        async def checked(message: Message) -> Sequence[Outgoing]:
            outgoing = await handler(message) or ()
            await self._check(outgoing)
            return outgoing

        async with (
            Transactions(self._cluster) as transactions,
            Subscription(
                self._cluster, [topic], group, tells_ends=True, reach=self._reach
            ) as subscription,
        ):
            consumption = Consumption(
                subscription, transactions, group, checked, concurrency, self._trials
            )
            await consumption.run()

    async def _check(self, outgoing: Sequence[Outgoing]) -> None:
        """Raise to the handler what can be checked before a transaction, which fails as a whole."""
        limit = self._cluster.message_bytes
        for topic, message in outgoing:
            size = message_bytes(message.key, message.value, message.headers)
            if size > limit:
                raise MessageTooLarge(topic, size, limit)
            await self._producer.require(topic)
