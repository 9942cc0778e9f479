"""Reads the logs of runs on the topic `kairos.runs`. All runs of a partition are in one stream."""

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import confluent_kafka as kafka
import msgspec

from kairos.errors import SetupError
from kairos.live.bus.left_out import count_left_out
from kairos.live.kafka.cluster import KafkaCluster
from kairos.live.kafka.items import ReceivedMessage, received
from kairos.live.kafka.topic_setup import partition_of
from kairos.live.runs.run_log import LogEntry, RecordTold, RunClaimed, RunLog
from kairos.topics import RUNS

logger = logging.getLogger(__name__)

WRITER = "writer"  # the header of who wrote an entry
_AT_ONCE = 500  # messages
_WAIT_S = 0.05
_SILENCE_S = 30.0  # then the cluster is given up
_ANSWER_S = 5.0
_ASK_EVERY_S = 1.0  # in silence, whether the cluster is there
# Messages of a partition that are looked at for what was told last; how many times as many next.
_LOOKS_BACK, _LOOKS_FARTHER = 5_000, 8


class LogPlace(NamedTuple):
    """Up to where a partition has been read, and whose entries counted there. From `OFFSET_END` on
    there is only what comes."""

    partition: int
    next: int = 0
    holder: str = ""


class RunTopicReader:
    """Of one run, from a place on."""

    def __init__(self, consumer: Any, run_id: str, place: LogPlace) -> None:
        """Raises SetupError: the cluster does not say where the partition ends."""
        self._consumer, self._run_id = consumer, run_id
        self._log = RunLog(place.holder)
        self.place = place
        self._end = self._end_by_now()
        self._has_seen_end = False

    @property
    def has_caught_up(self) -> bool:
        """Whether all has been read that was there when this began. Kafka tells of an end only
        where nothing more has come meanwhile: while other runs write, that may be never."""
        return self._has_seen_end or self.place.next >= self._end

    def skip_all_but(self, last: int) -> bool:
        """Go on with the last so many messages of the partition; returns whether there are no
        others. Raises SetupError: the cluster does not say."""
        begin, _ = self._bounds()
        self.place = self.place._replace(next=max(begin, self._end - last))
        partition = kafka.TopicPartition(RUNS, self.place.partition, self.place.next)
        self._consumer.assign([partition])
        return self.place.next == begin

    def is_reached(self) -> bool:
        """Whether whoever has the partition answers now; blocks."""
        try:
            self._end_by_now()
        except SetupError:
            return False
        return True

    def _end_by_now(self) -> int:
        return self._bounds()[1]

    def _bounds(self) -> tuple[int, int]:
        partition = kafka.TopicPartition(RUNS, self.place.partition)
        try:
            begin, end = self._consumer.get_watermark_offsets(partition, _ANSWER_S)
        except kafka.KafkaException as error:
            raise SetupError(f"Kafka does not tell of {RUNS}: {error.args[0].str()}") from None
        return int(begin), int(end)

    @property
    def claimed_by(self) -> str:
        return self._log.claimed_by

    def read(self) -> Iterator[tuple[ReceivedMessage, LogEntry | None]]:
        """What has come of the run, with what it says if that counts; waits a moment for it.

        Raises:
            SetupError: it cannot be read, and trying again would not help.
        """
        for record in self._consumer.consume(_AT_ONCE, _WAIT_S):
            error = record.error()
            if error is not None:
                self._note(error)
            elif (message := received(record)) is not None:
                entry = self._entry(message)
                self.place = self.place._replace(next=message.offset + 1, holder=self._log.holder)
                if message.key == self._run_id:
                    yield message, entry

    def _entry(self, message: ReceivedMessage) -> LogEntry | None:
        if message.key != self._run_id:
            return None
        try:
            return self._log.read(message.headers.get(WRITER, ""), message.value or b"")
        except (ValueError, msgspec.MsgspecError, RecursionError) as error:
            logger.warning("an entry of %s is left out: %s", RUNS, error)
            count_left_out(RUNS)
            return None

    def _note(self, error: Any) -> None:
        if error.code() == kafka.KafkaError._PARTITION_EOF:
            self._has_seen_end = True
        elif error.code() in _LASTING or error.fatal():
            raise SetupError(f"{RUNS} cannot be read: {error.str()}")
        else:
            logger.debug("reading %s: %s", RUNS, error.str())


_LASTING = (
    kafka.KafkaError._UNKNOWN_TOPIC,
    kafka.KafkaError._UNKNOWN_PARTITION,
    kafka.KafkaError.TOPIC_AUTHORIZATION_FAILED,
)


@contextmanager
def opened(
    cluster: KafkaCluster, run_id: str, place: LogPlace, **settings: object
) -> Iterator[RunTopicReader]:
    """`settings`: others of the client. Raises SetupError: it cannot be read."""
    consumer = kafka.Consumer(
        cluster.client(
            group_id="kairos.runs",  # unused: nothing is committed
            enable_auto_commit=False,
            enable_partition_eof=True,
            auto_offset_reset="earliest",
            fetch_wait_max_ms=100,
            queued_max_messages_kbytes=16_384,
            **settings,
        )
    )
    try:
        consumer.assign([kafka.TopicPartition(RUNS, place.partition, place.next)])
        yield RunTopicReader(consumer, run_id, place)
    finally:
        consumer.close()


def partition_for(client: Any, run_id: str) -> int:
    """Where a run's log is. Raises SetupError: the cluster does not say."""
    try:
        topic = client.list_topics(RUNS, _ANSWER_S).topics[RUNS]
    except kafka.KafkaException as error:
        raise SetupError(f"Kafka does not tell of {RUNS}: {error.args[0].str()}") from None
    if topic.error is not None:
        raise SetupError(f"Kafka has no topic {RUNS}: {topic.error.str()}")
    return partition_of(run_id, len(topic.partitions))


def latest_record(cluster: KafkaCluster, run_id: str) -> bytes | None:
    """What was told of a run last; None: the topic has nothing of it. Blocks.

    Raises:
        SetupError: the topic cannot be read.
    """
    part = partition_for(kafka.Producer(cluster.client(log_level=0)), run_id)
    back = _LOOKS_BACK
    while True:
        with opened(cluster, run_id, LogPlace(part), log_level=0) as reader:
            is_all = reader.skip_all_but(back)
            told, is_sure = _told_last(cluster, reader)
        if is_sure or is_all:
            return told
        back *= _LOOKS_FARTHER


def _told_last(cluster: KafkaCluster, reader: RunTopicReader) -> tuple[bytes | None, bool]:
    """And whether it was told behind a claim: before that, whose entries count is not known."""
    told, is_claimed, is_sure = None, False, False
    until = time.monotonic() + _SILENCE_S
    while not reader.has_caught_up:
        before = reader.place
        for _, entry in reader.read():
            is_claimed |= isinstance(entry, RunClaimed)
            if isinstance(entry, RecordTold):
                told, is_sure = bytes(entry.record), is_claimed
        if reader.place != before:
            until = time.monotonic() + _SILENCE_S
        elif time.monotonic() > until:
            raise SetupError(f"Kafka at {cluster.servers} does not tell of {RUNS}")
    return told, is_sure


def await_silence(
    cluster: KafkaCluster, run_id: str, is_over: Callable[[bytes], bool], silent_s: float
) -> None:
    """Return once nothing has come of a run for so long while the cluster was there, or what was
    told of it last is that it is over; blocks.

    Raises:
        SetupError: the topic cannot be read.
    """
    told: bytes | None = None
    heard_at = asked_at = time.monotonic()
    with _opened_at_first(cluster, run_id) as reader:
        while not (reader.has_caught_up and told is not None and is_over(told)):
            for _, entry in reader.read():
                if entry is not None:
                    heard_at = time.monotonic()
                if isinstance(entry, RecordTold):
                    told = bytes(entry.record)
            if not reader.has_caught_up:
                heard_at = time.monotonic()  # it may come after what there is of other runs
            elif time.monotonic() > max(heard_at, asked_at) + _ASK_EVERY_S:
                if not reader.is_reached():
                    heard_at = time.monotonic()  # what is told meanwhile comes after that
                asked_at = time.monotonic()
            if time.monotonic() > heard_at + silent_s:
                return


@contextmanager
def _opened_at_first(cluster: KafkaCluster, run_id: str) -> Iterator[RunTopicReader]:
    place = LogPlace(partition_for(kafka.Producer(cluster.client(log_level=0)), run_id))
    with opened(cluster, run_id, place, log_level=0) as reader:
        yield reader
