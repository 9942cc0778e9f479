"""Readers without a consumer group: messages from now on, or those at given offsets."""

import asyncio
import time
from collections.abc import Iterable, Iterator
from contextlib import AsyncExitStack, contextmanager
from typing import Any, Self

import confluent_kafka as kafka

from kairos.cluster.kafka.cluster import KafkaCluster
from kairos.cluster.kafka.items import CaughtUp, Item, ReceivedMessage, convert_message
from kairos.cluster.kafka.producer import Producer
from kairos.cluster.kafka.subscription import Subscription
from kairos.core import Message, Unavailable

_ANSWER_S = 10.0  # of the cluster
_POLL_S = 0.2


class Tail:
    """Async context manager that reads all messages sent to a topic once it is entered.

    Other readers of the topic are not affected.
    """

    def __init__(self, cluster: KafkaCluster, topic: str) -> None:
        self._cluster = cluster
        self._topic = topic
        self._subscription = Subscription(cluster, [topic], start="end")
        self._early: list[Message] = []  # came while we were finding our place

    async def __aenter__(self) -> Self:
        async with Producer(self._cluster) as asking:
            partitions = await asking.partitions(self._topic)
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self._subscription)
            placed = 0
            while placed < partitions:
                for item in await self._subscription.batch():
                    placed += isinstance(item, CaughtUp)
                    self._early += _messages([item])
            stack.pop_all()
        return self

    async def __aexit__(self, *raised: object) -> None:
        await self._subscription.__aexit__(*raised)

    async def batch(self) -> list[Message]:
        """Return messages received since the last call, in order within a partition; at least one.

        Raises:
            Unavailable: The topic cannot be read, and retrying would not help.
        """
        messages, self._early = self._early, []
        while not messages:
            messages = _messages(await self._subscription.batch())
        return messages


def _messages(items: Iterable[Item]) -> list[Message]:
    return [
        Message(key=each.key, value=each.value or b"", headers=each.headers)
        for each in items
        if isinstance(each, ReceivedMessage)
    ]


class NotKept(Exception):
    """The topic has already deleted the messages at this offset."""


async def read_at(cluster: KafkaCluster, topic: str, offset: int) -> ReceivedMessage | None:
    """Return the message at an offset of a topic's first partition; None if the offset is unused.

    Raises:
        NotKept: The offset is older than what the topic retains.
        Unavailable: The cluster did not answer within ten seconds.
    """
    try:
        return await asyncio.to_thread(_read_at, cluster, topic, offset)
    except kafka.KafkaException as error:
        raise Unavailable(f"{topic} cannot be read at {offset}: {error}") from None


def _read_at(cluster: KafkaCluster, topic: str, offset: int) -> ReceivedMessage | None:
    with place_reader(cluster) as reader:
        first, end = reader.bounds(topic, 0)
        if offset < first:
            raise NotKept
        if offset >= end:
            return None
        found = next(reader.read(topic, 0, offset, offset + 1), None)
        return None if found is None else convert_message(found)


class PlaceReader:
    """Blocking reader of ranges of partitions, which commits nothing."""

    def __init__(self, consumer: Any) -> None:
        self._consumer = consumer

    def partitions(self, topic: str) -> list[int]:
        """Return the numbers of a topic's partitions; none if it does not exist."""
        found = self._consumer.list_topics(topic, timeout=_ANSWER_S).topics[topic]
        if found.error is None:
            return sorted(found.partitions)
        if found.error.code() == kafka.KafkaError.UNKNOWN_TOPIC_OR_PART:
            return []
        raise kafka.KafkaException(found.error)

    def bounds(self, topic: str, partition: int) -> tuple[int, int]:
        """Return the offset of the first retained message, and the offset of the next to come."""
        place = kafka.TopicPartition(topic, partition)
        first, end = self._consumer.get_watermark_offsets(place, timeout=_ANSWER_S)
        return first, end

    def read(self, topic: str, partition: int, start: int, end: int) -> Iterator[Any]:
        """Yield librdkafka's messages with offsets from `start` up to, not including, `end`.

        Raises:
            Unavailable: The cluster has not answered for ten seconds.
            kafka.KafkaException: The partition cannot be read.
        """
        self._consumer.assign([kafka.TopicPartition(topic, partition, start)])
        heard_at = time.monotonic()
        while True:
            found = self._consumer.poll(_POLL_S)
            if found is None:
                if time.monotonic() > heard_at + _ANSWER_S:
                    raise Unavailable(f"{topic}/{partition}: the cluster does not answer")
                continue
            heard_at = time.monotonic()
            if (error := found.error()) is not None:
                if error.code() == kafka.KafkaError._PARTITION_EOF:
                    return
                raise kafka.KafkaException(error)
            if found.offset() < end:
                yield found
            if found.offset() >= end - 1:
                return


@contextmanager
def place_reader(cluster: KafkaCluster) -> Iterator[PlaceReader]:
    """Yield a reader, and close it at the end of the block."""
    settings = cluster.client(
        group_id="kairos.readers",  # unused: nothing is committed
        enable_auto_commit=False,
        enable_partition_eof=True,
        isolation_level="read_committed",
        log_level=0,
    )
    consumer: Any = kafka.Consumer(settings)
    try:
        yield PlaceReader(consumer)
    finally:
        consumer.close()
