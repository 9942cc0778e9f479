"""Finds records of the bus that make no sense, by the readers that processes have."""

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import confluent_kafka as kafka
import msgspec
from confluent_kafka.admin import AdminClient

from kairos.cluster import (
    ALIVE,
    CALL,
    POOL_HEADER,
    TAKEOVER_HEADER,
    TOLD,
    TYPE_HEADER,
    Alive,
    Epochs,
    KafkaCluster,
    PlaceReader,
    ReceivedMessage,
    check_event,
    convert_message,
    pass_record,
    place_reader,
    read_call,
    read_envelope,
    read_orders,
    read_part,
    read_record,
    read_told,
)
from kairos.core import Arrived, InvalidRequest, Message, SetupError, Topic, Unavailable
from kairos.host import WallClock
from kairos.observe import UNREADABLE

CHECKED = (
    Topic.REQUESTS,
    Topic.DISPATCHES,
    Topic.EVENTS,
    Topic.PROFILES,
    Topic.RESULTS,
)  # orders before announcements
_MOST_EPOCHS = 100_000
_ANSWER_S = 10.0
_WHERE = re.compile(r"([A-Za-z0-9._-]{1,249})/([0-9]{1,9})@([0-9]{1,18})")
_REASON = 200  # characters
_alive = msgspec.json.Decoder(Alive)


class CheckedBus(msgspec.Struct):
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

    def complain_of(self, found: Any) -> str | None:
        """Return what is wrong with one of librdkafka's messages; None: nothing is."""
        message = convert_message(found)
        return "a header's name is no text" if message is None else self.complain(message)

    def complain(self, message: ReceivedMessage) -> str | None:
        """Return what is wrong with a record; None: nothing is."""
        try:
            return self._read(message)
        except UNREADABLE as error:
            return f"{type(error).__name__}: {error}"[:_REASON]

    def _read(self, message: ReceivedMessage) -> str | None:
        topic = message.topic
        if topic == Topic.EVENTS:
            return self._read_event(message)
        if topic == Topic.REQUESTS:
            _read_request(message)
        elif topic == Topic.DISPATCHES:
            self._read_orders(message)
        elif topic == Topic.PROFILES:
            read_part(message.key, message.value)
        elif topic == Topic.RESULTS:
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
        pool = message.headers.get(POOL_HEADER, "")
        epochs = self._epochs.setdefault(pool, Epochs(self._first, None))
        if TAKEOVER_HEADER in message.headers:
            epochs.announce(message.offset)
            self._announced.add((pool, message.offset))
            return None
        epoch, _ = read_record(message)
        if epochs.is_forged(epoch):
            return f"no balancer announced itself at {epoch}"
        return None


def _read_request(message: ReceivedMessage) -> None:
    kind, value = message.headers.get(TYPE_HEADER), message.value or b""
    if kind == ALIVE:
        _alive.decode(value)
    elif kind == TOLD:
        told = read_told(value)
        if isinstance(told.event, Arrived):  # of which `read_told` leaves the check to others
            check_event(told.event)
    elif kind == CALL:
        read_call(message, WallClock().now())
    else:
        raise InvalidRequest(f"the {TYPE_HEADER} '{str(kind)[:40]}' is not known")


def check_bus(
    cluster: KafkaCluster, topics: Sequence[str], last: int | None, say: Callable[[str], None]
) -> CheckedBus:
    """Read topics to where they end now, and say where a record makes no sense, a line for each.

    With `last`, that many records at the end of each partition are read. Raises SetupError: The
    cluster cannot be reached, or has no such topic.
    """
    checked, complaints = CheckedBus(), RecordReader()

    def complain(line: str) -> None:
        checked.wrong += 1
        say(line)

    try:
        with place_reader(cluster) as reader:
            for found in _records(reader, topics, last):
                checked.records += 1
                if (why := complaints.complain_of(found)) is not None:
                    complain(f"{found.topic()}/{found.partition()}@{found.offset()}: {why}")
    except kafka.KafkaException as error:
        raise SetupError(f"{cluster.servers}: {error.args[0].str()}") from None
    except Unavailable as error:
        raise SetupError(str(error)) from None
    for line in complaints.complain_of_epochs():
        complain(line)
    return checked


def _records(reader: PlaceReader, topics: Sequence[str], last: int | None) -> Iterator[Any]:
    for topic in topics:
        partitions = reader.partitions(topic)
        if not partitions and topic not in CHECKED:  # of ours, nobody has written to it yet
            raise SetupError(f"{topic}: there is no such topic")
        for partition in partitions:
            first, end = reader.bounds(topic, partition)
            start = first if last is None else max(first, end - last)
            if start < end:
                yield from reader.read(topic, partition, start, end)


def skip_record(cluster: KafkaCluster, where: str, group: str) -> str:
    """Have a group go on behind a record, and return what was done, in words.

    Raises SetupError: It is not a place, the group is not stopped or is behind it already.
    """
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
        to, metadata, left = pass_record(now.offset, now.metadata or "", offset)
        goes_on = kafka.TopicPartition(topic, partition, to, metadata)
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
    return f"{group} goes on at {to} of {topic}/{partition}; {left:,} before it are left"
