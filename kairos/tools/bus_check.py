"""Finds records of the bus that make no sense, by the readers that processes have."""

import asyncio
import re
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import confluent_kafka as kafka
import msgspec
from confluent_kafka.admin import AdminClient

from kairos.envelope import read_envelope
from kairos.errors import InvalidRequest, SetupError
from kairos.live.kafka.cluster import KafkaCluster
from kairos.live.kafka.items import ReceivedMessage, received
from kairos.live.kafka.profiles_topic import read_part
from kairos.live.pool.bus_call import read_call
from kairos.live.pool.messages import (
    ALIVE,
    CALL,
    POOL,
    TAKEOVER,
    TOLD,
    TYPE,
    Alive,
    Epochs,
    check_event,
    read_orders,
    read_record,
    read_told,
)
from kairos.live.process.clock import WallClock
from kairos.ports import Message
from kairos.topics import DISPATCHES, EVENTS, PROFILES, REQUESTS, RESULTS

CHECKED = (REQUESTS, DISPATCHES, EVENTS, PROFILES, RESULTS)  # orders before announcements
_MOST_EPOCHS = 100_000
_ANSWER_S = 10.0
_POLL_S = 0.5
_WHERE = re.compile(r"([A-Za-z0-9._-]{1,249})/([0-9]{1,9})@([0-9]{1,18})")
_WRONG = (InvalidRequest, ValueError, msgspec.MsgspecError, RecursionError)
_REASON = 200  # characters
_alive = msgspec.json.Decoder(Alive)


class CheckedBus(msgspec.Struct):
    """The figures of one check."""

    records: int = 0
    wrong: int = 0

    def summary(self) -> str:
        return f"{self.records:,} records were read, {self.wrong:,} of them make no sense"


class RecordReader:
    """Reads the records of a topic in their order, and says what is wrong with each."""

    def __init__(self) -> None:
        self._first: int | None = None
        self._epochs: dict[str, Epochs] = {}
        self._announced: set[tuple[str, int]] = set()  # pools and epochs
        self._ordered: dict[tuple[str, int], str] = {}  # of orders, and where the first is

    def complain(self, message: ReceivedMessage) -> str | None:
        """Return what is wrong with a record; None: nothing is."""
        try:
            return self._read(message)
        except _WRONG as error:
            return f"{type(error).__name__}: {error}"[:_REASON]

    def _read(self, message: ReceivedMessage) -> str | None:
        match message.topic:
            case topic if topic == REQUESTS:
                _read_request(message)
            case topic if topic == DISPATCHES:
                self._read_orders(message)
            case topic if topic == EVENTS:
                return self._read_event(message)
            case topic if topic == PROFILES:
                read_part(message.key, message.value)
            case topic if topic == RESULTS:
                value, headers = message.value or b"", message.headers
                read_envelope(Message(key=message.key, value=value, headers=headers))
        return None

    def complain_of_epochs(self) -> Iterator[str]:
        """Yield what is wrong with orders, now that all announcements were read."""
        for (pool, epoch), where in self._ordered.items():
            is_kept = self._first is not None and epoch >= self._first
            if is_kept and (pool, epoch) not in self._announced:
                yield f"{where}: no balancer announced itself at {epoch}"

    def _read_orders(self, message: ReceivedMessage) -> None:
        epoch, _ = read_orders(message)
        where = f"{message.topic}/{message.partition}@{message.offset}"
        if len(self._ordered) < _MOST_EPOCHS:
            self._ordered.setdefault((message.key, epoch), where)

    def _read_event(self, message: ReceivedMessage) -> str | None:
        if self._first is None:
            self._first = message.offset
        pool = message.headers.get(POOL, "")
        epochs = self._epochs.setdefault(pool, Epochs(self._first, None))
        if TAKEOVER in message.headers:
            epochs.announce(message.offset)
            self._announced.add((pool, message.offset))
            return None
        epoch = read_record(message).epoch
        if epochs.is_forged(epoch):
            return f"no balancer announced itself at {epoch}"
        return None


def _read_request(message: ReceivedMessage) -> None:
    kind, value = message.headers.get(TYPE), message.value or b""
    if kind == ALIVE:
        _alive.decode(value)
    elif kind == TOLD:
        check_event(read_told(value).event)
    elif kind == CALL:
        read_call(message, WallClock().now())
    else:
        raise InvalidRequest(f"the {TYPE} '{str(kind)[:40]}' is not known")


async def check_bus(
    cluster: KafkaCluster, topics: Sequence[str], last: int | None, say: Callable[[str], None]
) -> CheckedBus:
    """Read topics to where they end now, and say where a record makes no sense.

    Args:
        cluster: The cluster, with leave to read the topics.
        topics: Their names.
        last: Records at the end of each partition; None: all there are.
        say: What takes a line for each record that is wrong.

    Raises:
        SetupError: The cluster cannot be reached, or has no such topic.
    """
    return await asyncio.to_thread(_check_bus, cluster, topics, last, say)


def _check_bus(
    cluster: KafkaCluster, topics: Sequence[str], last: int | None, say: Callable[[str], None]
) -> CheckedBus:
    settings = cluster.client(
        group_id="kairos.readers",  # unused: nothing is committed
        enable_auto_commit=False,
        enable_partition_eof=True,
        isolation_level="read_committed",
        log_level=0,
    )
    consumer: Any = kafka.Consumer(settings)
    checked, reader = CheckedBus(), RecordReader()
    try:
        for topic in topics:
            for partition in _partitions(consumer, topic):
                _check_partition(consumer, topic, partition, last, reader, say, checked)
        for line in reader.complain_of_epochs():
            checked.wrong += 1
            say(line)
    except kafka.KafkaException as error:
        raise SetupError(f"{cluster.servers}: {error.args[0].str()}") from None
    finally:
        consumer.close()
    return checked


def _partitions(consumer: Any, topic: str) -> list[int]:
    found = consumer.list_topics(topic, timeout=_ANSWER_S).topics[topic]
    if found.error is not None:
        if found.error.code() == kafka.KafkaError.UNKNOWN_TOPIC_OR_PART and topic in CHECKED:
            return []  # what nobody has written to yet
        raise SetupError(f"{topic}: {found.error.str()}")
    return sorted(found.partitions)


def _check_partition(
    consumer: Any,
    topic: str,
    partition: int,
    last: int | None,
    reader: RecordReader,
    say: Callable[[str], None],
    checked: CheckedBus,
) -> None:
    first, end = consumer.get_watermark_offsets(
        kafka.TopicPartition(topic, partition), timeout=_ANSWER_S
    )
    start = first if last is None else max(first, end - last)
    if start >= end:
        return
    consumer.assign([kafka.TopicPartition(topic, partition, start)])
    heard_at = time.monotonic()
    while True:
        found = consumer.poll(_POLL_S)
        if found is None:
            if time.monotonic() > heard_at + _ANSWER_S:
                raise SetupError(f"{topic}/{partition}: the cluster does not answer")
            continue
        heard_at = time.monotonic()
        if (error := found.error()) is not None:
            if error.code() == kafka.KafkaError._PARTITION_EOF:
                return
            raise kafka.KafkaException(error)
        checked.records += 1
        message = received(found)
        why = "a header's name is no text" if message is None else reader.complain(message)
        if why is not None:
            checked.wrong += 1
            say(f"{topic}/{partition}@{found.offset()}: {why}")
        if found.offset() >= end - 1:
            return


async def skip_record(cluster: KafkaCluster, where: str, group: str) -> str:
    """Have a group go on behind a record, and return what was done, in words.

    Raises:
        SetupError: It is not a place, the group is not stopped or is behind it already.
    """
    return await asyncio.to_thread(_skip_record, cluster, where, group)


def _skip_record(cluster: KafkaCluster, where: str, group: str) -> str:
    found = _WHERE.fullmatch(where)
    if found is None:
        raise SetupError(f"'{where}' names no record: write TOPIC/PARTITION@OFFSET")
    topic, partition, offset = found[1], int(found[2]), int(found[3])
    settings: Any = cluster.client(log_level=0)
    admin: Any = AdminClient(settings)
    place = kafka.TopicPartition(topic, partition)
    try:
        whose = kafka.ConsumerGroupTopicPartitions(group, [place])
        listed = admin.list_consumer_group_offsets([whose], request_timeout=_ANSWER_S)
        [now] = listed[group].result().topic_partitions
        if now.offset < 0:
            raise SetupError(f"the group '{group}' has no place in {topic}/{partition}")
        if now.offset > offset:
            raise SetupError(f"the group '{group}' is behind it already, at {now.offset}")
        goes_on = kafka.TopicPartition(topic, partition, offset + 1, now.metadata or "")
        wanted = kafka.ConsumerGroupTopicPartitions(group, [goes_on])
        asked = admin.alter_consumer_group_offsets([wanted], request_timeout=_ANSWER_S)[group]
        [set_to] = asked.result().topic_partitions
        problem = set_to.error
    except kafka.KafkaException as error:
        problem = error.args[0]
    if problem is not None:
        raise SetupError(
            f"the group '{group}' stays where it is: {problem.str()} (stop its processes)"
        )
    passed = offset - now.offset
    return f"{group} goes on at {offset + 1} of {topic}/{partition}; {passed:,} before it are left"
