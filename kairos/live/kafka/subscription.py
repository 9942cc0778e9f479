"""Reads topics of Kafka: what a consumer's poll thread finds, as one ordered stream.

The thread polls all the time, so the group never takes a slow handler for a dead member; what it
reads ahead is bounded, and beyond that its partitions are paused.
"""

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Literal, Self

import confluent_kafka as kafka
import msgspec

from kairos.errors import Unavailable
from kairos.live.kafka.connection import Connection

logger = logging.getLogger(__name__)

SESSION_S = 6.0
_POLL_S = 0.05
_AHEAD = 1_000  # messages read ahead of the loop
_AHEAD_BYTES = 16 << 20
_ANSWER_S = 30.0
_PATIENCE_S = 1.0  # before partitions are paused: to go on after that takes a second
_NAP_S = 0.001


class Received(msgspec.Struct, frozen=True):
    """A message, as it came. `at`: when Kafka or its sender stamped it, µs since the epoch."""

    topic: str
    partition: int
    offset: int
    at: int
    key: str
    value: bytes | None  # None: a tombstone
    headers: Mapping[str, str]


class Assigned(msgspec.Struct, frozen=True):
    """A partition is this member's from now on. It is read from `offset`, the committed one; -1001
    where the group has committed none and reads from the beginning."""

    topic: str
    partition: int
    offset: int
    metadata: str  # that was committed with it


class Revoked(msgspec.Struct, frozen=True):
    """A partition is another member's from now on."""

    topic: str
    partition: int


class CaughtUp(msgspec.Struct, frozen=True):
    """All there was in a partition, at some moment, has been read."""

    topic: str
    partition: int


Item = Received | Assigned | Revoked | CaughtUp
Start = Literal["beginning", "end"] | int  # an instant: from the first message since


class Subscription:
    """An async context manager. With a group: its share of the topics, from where it committed.
    Without: all of each topic, from `start`, and nothing is committed.

    Commits are the reader's to make (`commit`); of transactions it sees what was committed.
    """

    def __init__(
        self,
        connection: Connection,
        topics: Sequence[str],
        group: str | None = None,
        *,
        start: Start = "beginning",
        session_s: float = SESSION_S,
    ) -> None:
        self._topics = list(topics)
        self._group = group
        self._start = start
        self._settings = connection.client(
            group_id=group or "kairos.readers",  # unused: without a group nothing is committed
            enable_auto_commit=False,
            enable_partition_eof=True,
            auto_offset_reset="earliest",
            isolation_level="read_committed",
            partition_assignment_strategy="cooperative-sticky",
            session_timeout_ms=int(session_s * 1000),
            heartbeat_interval_ms=int(session_s * 1000 / 6),
            queued_max_messages_kbytes=16_384,
            fetch_wait_max_ms=100,
            topic_metadata_refresh_interval_ms=10_000,
        )
        self._stopping = threading.Event()
        self._ahead: deque[Item | Exception] = deque()
        self._bytes_put = 0  # counted by the thread
        self._bytes_taken = 0  # counted by the loop
        self._is_woken = False
        self._ready = asyncio.Event()
        self._metadata: Any = None
        self._commits: deque[tuple[asyncio.Future[None], Any]] = deque()  # for the thread
        self._reading: set[tuple[str, int]] = set()  # partitions whose end has not been reached

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        self._consumer = kafka.Consumer(self._settings)
        self._thread = threading.Thread(target=self._run, name="kafka-consumer", daemon=True)
        self._thread.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stopping.set()
        await asyncio.to_thread(self._thread.join)

    async def batch(self) -> list[Item]:
        """What has come since the last time, in order; at least one item.

        Raises:
            Unavailable: this cannot be read, and trying again would not help.
        """
        while not self._ahead:
            self._ready.clear()
            await self._ready.wait()
        items: list[Item] = []
        while self._ahead:
            item = self._ahead.popleft()
            if isinstance(item, Exception):
                raise item
            if isinstance(item, Received):
                self._bytes_taken += len(item.value or b"")
            items.append(item)
        return items

    async def commit(self, offsets: Mapping[tuple[str, int], tuple[int, str]]) -> None:
        """Commit, for partitions by topic and number, the offset to go on from, and metadata.

        Raises:
            Unavailable: it was not taken; the partition may have been revoked meanwhile.
        """
        partitions = [
            kafka.TopicPartition(topic, number, offset, metadata)
            for (topic, number), (offset, metadata) in offsets.items()
        ]
        taken: asyncio.Future[None] = self._loop.create_future()
        self._commits.append((taken, partitions))
        await taken

    def group_metadata(self) -> Any:
        """Of this member, as of the last rebalance, for a transaction that commits its offsets."""
        return self._metadata

    def _run(self) -> None:
        try:
            self._begin()
            while not self._stopping.is_set():
                record = self._consumer.poll(_POLL_S)
                if record is not None:
                    self._take(record)
                self._commit_waiting()
                if self._is_full():
                    self._wait_for_room()
        except Exception as error:  # noqa: BLE001 - raised where the stream is read
            self._put(Unavailable(f"the bus cannot be read: {error}"))
        finally:
            self._consumer.close()

    def _is_full(self) -> bool:
        ahead_bytes = self._bytes_put - self._bytes_taken
        return len(self._ahead) >= _AHEAD or ahead_bytes >= _AHEAD_BYTES

    def _wait_for_room(self) -> None:
        """A moment as it is; then with partitions paused, so that the group's news still comes."""
        waits_until = time.monotonic() + _PATIENCE_S
        while self._is_full() and time.monotonic() < waits_until and not self._stopping.is_set():
            time.sleep(_NAP_S)
        while self._is_full() and not self._stopping.is_set():
            self._consumer.pause(self._consumer.assignment())
            record = self._consumer.poll(_POLL_S)
            if record is not None:
                self._take(record)
        self._consumer.resume(self._consumer.assignment())

    def _begin(self) -> None:
        if self._group is not None:
            self._consumer.subscribe(
                self._topics, on_assign=self._assigned, on_revoke=self._revoked
            )
            return
        partitions = []
        for topic in self._topics:
            described = self._consumer.list_topics(topic, _ANSWER_S).topics[topic]
            if described.error is not None:
                raise kafka.KafkaException(described.error)
            numbers = sorted(described.partitions)
            partitions += [kafka.TopicPartition(topic, n, self._first()) for n in numbers]
        self._reading = {(each.topic, each.partition) for each in partitions}
        if isinstance(self._start, int):
            partitions = self._consumer.offsets_for_times(partitions, _ANSWER_S)
        self._consumer.assign(partitions)

    def _first(self) -> int:
        if isinstance(self._start, int):
            return self._start // 1000  # Kafka's instants are ms
        begins = self._start == "beginning"
        return int(kafka.OFFSET_BEGINNING if begins else kafka.OFFSET_END)

    def _assigned(self, consumer: Any, partitions: Any) -> None:
        known = consumer.committed(partitions, _ANSWER_S) if partitions else []
        for each in known:
            self._reading.add((each.topic, each.partition))
            self._put(Assigned(each.topic, each.partition, each.offset, each.metadata or ""))
        consumer.incremental_assign(known)
        self._metadata = consumer.consumer_group_metadata()

    def _revoked(self, consumer: Any, partitions: Any) -> None:
        for each in partitions:
            self._put(Revoked(each.topic, each.partition))
        consumer.incremental_unassign(partitions)
        self._metadata = consumer.consumer_group_metadata()

    def _commit_waiting(self) -> None:
        """In the thread that polls: a commit waits for ever while another thread polls."""
        while self._commits:
            taken, partitions = self._commits.popleft()
            failure = None
            try:
                self._consumer.commit(offsets=partitions, asynchronous=False)
            except (kafka.KafkaException, RuntimeError) as error:
                failure = Unavailable(f"the bus did not take a commit: {error}")
            self._loop.call_soon_threadsafe(_settle, taken, failure)

    def _take(self, record: Any) -> None:
        error = record.error()
        if error is None:
            self._put(_received(record))
        elif error.code() == kafka.KafkaError._PARTITION_EOF:
            if (where := (record.topic(), record.partition())) in self._reading:
                self._reading.discard(where)
                self._put(CaughtUp(*where))
        elif error.fatal() or not (error.retriable() or _passes(error)):
            self._put(Unavailable(f"the bus cannot be read: {error.str()}"))
        else:
            logger.warning("reading %s: %s", ", ".join(self._topics), error.str())

    def _put(self, item: Item | Exception) -> None:
        if isinstance(item, Received):
            self._bytes_put += len(item.value or b"")
        self._ahead.append(item)
        if not self._is_woken:
            self._is_woken = True
            self._loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        self._is_woken = False
        self._ready.set()


def _settle(taken: asyncio.Future[None], failure: Unavailable | None) -> None:
    if taken.done():
        return
    if failure is None:
        taken.set_result(None)
    else:
        taken.set_exception(failure)


def _passes(error: Any) -> bool:
    """Whether what librdkafka does not call retriable is over once the cluster is back."""
    return error.code() in (
        kafka.KafkaError._ALL_BROKERS_DOWN,
        kafka.KafkaError._TRANSPORT,
        kafka.KafkaError._RESOLVE,
        kafka.KafkaError._TIMED_OUT,
        kafka.KafkaError.UNKNOWN_TOPIC_OR_PART,
    )


def _received(record: Any) -> Received:
    headers = {
        name: (value or b"").decode(errors="replace") for name, value in record.headers() or ()
    }
    return Received(
        record.topic(),
        record.partition(),
        record.offset(),
        record.timestamp()[1] * 1000,
        (record.key() or b"").decode(errors="replace"),
        record.value(),
        headers,
    )
