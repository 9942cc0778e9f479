"""Kafka producer for asyncio: send a message, await its acknowledgement.

librdkafka's synchronous producer with a thread that polls it: an acknowledgement wakes the event
loop once, and so do many that arrive together.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Self

import confluent_kafka as kafka

from kairos.cluster.bus.envelope import message_bytes
from kairos.cluster.kafka.cluster import KafkaCluster
from kairos.cluster.kafka.connectivity import Connectivity, Contact, is_transient
from kairos.core import KairosError, MessageTooLarge, TopicMissing, Unavailable

_POLL_S = 0.1
_CLOSE_S = 10.0  # for what has not been acknowledged yet
_ANSWER_S = 2.0
_VISIBLE_S = 5.0  # until a new topic is known to every broker
_NOTHING: Mapping[str, str] = MappingProxyType({})
# As Java's clients do; every other producer with the same keys must use the same one.
PARTITIONER = "murmur2_random"


class Producer:
    """An async context manager; on exit it waits up to 10 s for unacknowledged messages.

    A message is retried until the cluster has it, in the order of `send` within a partition.
    Waiting messages are bounded by librdkafka (100,000, 1 GiB).
    """

    def __init__(self, cluster: KafkaCluster, *, reach: Connectivity | None = None) -> None:
        self._limit = cluster.message_bytes
        self._contact = Contact(reach or Connectivity(cluster.servers))
        self._settings = cluster.client(
            enable_idempotence=True,
            acks="all",
            linger_ms=0,
            message_timeout_ms=0,
            topic_metadata_propagation_max_ms=int(_VISIBLE_S * 1000),
            partitioner=PARTITIONER,
        )
        self._stopping = threading.Event()
        self._acknowledged: deque[tuple[asyncio.Future[int], Any, Any]] = deque()
        self._is_woken = False
        self._known: set[str] = set()

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        self._producer = kafka.Producer(self._settings | self._contact.settings())
        self._thread = threading.Thread(target=self._poll, name="kafka-producer", daemon=True)
        self._thread.start()
        return self

    async def __aexit__(self, *_raised: object) -> None:
        await asyncio.to_thread(self._close)
        self._settle()

    def send(
        self, topic: str, key: str, value: bytes | None, headers: Mapping[str, str] = _NOTHING
    ) -> asyncio.Future[int]:
        """Send a message; the future resolves to its offset once the cluster has it.

        The future fails with TopicMissing, or with Unavailable if the cluster rejects the message.
        The key chooses the partition; a value of None is a tombstone.

        Raises:
            MessageTooLarge: The message exceeds the cluster's limit.
            Unavailable: The send buffer is full.
        """
        size = message_bytes(key, value, headers)
        if size > self._limit:
            raise MessageTooLarge(topic, size, self._limit)
        future: asyncio.Future[int] = self._loop.create_future()

        def acknowledge(error: Any, message: Any) -> None:
            self._acknowledged.append((future, error, message))
            if not self._is_woken and not self._loop.is_closed():
                self._is_woken = True
                self._loop.call_soon_threadsafe(self._settle)

        try:
            self._producer.produce(
                topic, value, key, on_delivery=acknowledge, headers=list(headers.items())
            )
        except BufferError:
            raise Unavailable("the bus accepts nothing, and its send buffer is full") from None
        except kafka.KafkaException as error:  # the client already knows: no such topic
            if error.args[0].fatal():
                raise
            future.set_exception(refusal(topic, error.args[0]))
        return future

    async def require(self, topic: str) -> None:
        """Return once the topic is known to exist.

        The answer is cached; errors as in `partitions`.
        """
        if topic not in self._known:
            await self.partitions(topic)
            self._known.add(topic)

    async def partitions(self, topic: str) -> int:
        """Return the number of the topic's partitions; retry until the cluster answers.

        Raises:
            TopicMissing: The topic does not exist.
        """
        gives_up_at = self._loop.time() + _VISIBLE_S
        while True:
            try:
                listed = await asyncio.to_thread(self._producer.list_topics, topic, _ANSWER_S)
            except kafka.KafkaException:
                gives_up_at = self._loop.time() + _VISIBLE_S
            else:
                found = listed.topics[topic]
                if found.error is None:
                    return len(found.partitions)
                if self._loop.time() > gives_up_at or not is_transient(found.error):
                    raise TopicMissing(topic, found.error.str())
            await asyncio.sleep(_POLL_S)

    def _poll(self) -> None:
        while not self._stopping.is_set():
            self._producer.poll(_POLL_S)
            self._contact.probe(self._producer)

    def _close(self) -> None:
        self._producer.flush(_CLOSE_S)
        self._stopping.set()
        self._thread.join()
        self._producer.purge()  # what could not be sent fails now
        self._producer.flush(_POLL_S)
        self._contact.close()

    def _settle(self) -> None:
        self._is_woken = False
        while self._acknowledged:
            future, error, message = self._acknowledged.popleft()
            if future.done():
                continue
            if error is None:
                future.set_result(message.offset())
            else:
                future.set_exception(refusal(message.topic(), error))


def refusal(topic: str, error: Any) -> KairosError:
    """Return the error for a message that Kafka rejected."""
    if error.code() in _MISSING:
        return TopicMissing(topic, error.str())
    return Unavailable(f"the bus did not take a message for {topic}: {error.str()}")


_MISSING = (
    kafka.KafkaError._UNKNOWN_TOPIC,
    kafka.KafkaError.UNKNOWN_TOPIC_OR_PART,
    kafka.KafkaError.TOPIC_EXCEPTION,
)
