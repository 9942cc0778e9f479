"""The journal of a run on Kafka's topic `kairos.runs`, which is the truth; SQLite has what came
back from there.

All that is sent is read again, in the order that the cluster gave it, and only then applied: so a
journal is the same wherever it is made, and what another executor wrote is in it, too. What counts,
`run_log.py` says.
"""

import secrets
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import confluent_kafka as kafka
import msgspec

from kairos.errors import SetupError, Unavailable
from kairos.live.kafka.cluster import KafkaCluster
from kairos.live.kafka.connectivity import Connectivity, Contact
from kairos.live.kafka.items import ReceivedMessage
from kairos.live.kafka.producer import PARTITIONER
from kairos.live.runs.journal_changes import JournalChange, PassingForgotten
from kairos.live.runs.large_values import MESSAGE_VALUE_BYTES, LargeValues
from kairos.live.runs.run_log import LogEntry, RecordTold, RunClaimed
from kairos.live.runs.run_topic_reader import (
    WRITER,
    LogPlace,
    RunTopicReader,
    opened,
    partition_for,
)
from kairos.live.runs.value_writer import ValueWriter
from kairos.topics import RUNS

_FILE = "file"  # the header of where the value is that an entry has not itself
_POLL_S = 0.05
_SILENCE_S = 60.0  # while it begins; then the cluster is given up
_CLOSE_S = 10.0
_FILLER = msgspec.Raw(b"null")  # in place of a value that is in a file

_encode = msgspec.json.Encoder().encode


class RunTopic:
    """The log of one run, for one session that executes it.

    `begin` claims it. From then on a thread of its own sends and reads; `send` and `tell` never
    wait for the cluster, and no more than one thread may call them.
    """

    def __init__(self, cluster: KafkaCluster, run_id: str, values: LargeValues) -> None:
        self._cluster, self._run_id, self._values = cluster, run_id, values
        self._writer = secrets.token_hex(8)
        self._contact = Contact(Connectivity(cluster.servers))
        self._stopping, self._is_read, self._is_ours = (threading.Event() for _ in range(3))
        self._broken: SetupError | None = None
        self._writing = ValueWriter(values, self._produce, self._fail)
        self._sent = self._returned = self._sent_bytes = self._returned_bytes = 0
        self._read_at = time.monotonic()
        self._thread: threading.Thread | None = None

    @property
    def backlog(self) -> int:
        """Entries that have not come back yet."""
        return self._sent - self._returned

    @property
    def backlog_bytes(self) -> int:
        return self._sent_bytes - self._returned_bytes + self._writing.backlog_bytes

    def begin(
        self,
        place: Callable[[int], LogPlace],
        apply: Callable[[JournalChange], None],
        arrived: Callable[[LogPlace], None],
    ) -> None:
        """Claim the run, and return once all that was there before has been applied; blocks.

        Args:
            place: from where to go on, of a partition.
            apply: is called, in the thread, with each change that counts, in order.
            arrived: is called there after some of them: up to here all were applied.

        Raises:
            SetupError: it cannot be read, another executor claimed it meanwhile, or it was left.
        """
        self._apply, self._arrived = apply, arrived
        self._producer = kafka.Producer(
            self._cluster.client(
                enable_idempotence=True,
                acks="all",
                linger_ms=5,
                message_timeout_ms=0,
                partitioner=PARTITIONER,
            )
            | self._contact.settings()
        )
        self.partition = partition_for(self._producer, self._run_id)
        self._begin_at = place(self.partition)
        self._thread = threading.Thread(target=self._run, name="run-topic", daemon=True)
        self._thread.start()
        self._await(self._is_read)
        # Only now: whoever stands by takes one who claimed it and is not heard for dead.
        self._put(RunClaimed(socket.gethostname()[:64]))
        self._await(self._is_ours)

    def _await(self, event: threading.Event) -> None:
        while not event.wait(_POLL_S) or self._stopping.is_set():
            self.check()
            if self._stopping.is_set():
                raise SetupError(f"the run {self._run_id} was left before it began")
            if time.monotonic() > self._read_at + _SILENCE_S:
                raise SetupError(f"Kafka at {self._cluster.servers} does not tell of {RUNS}")

    def leave(self) -> None:
        """Nobody waits for `begin` any more, which runs in another thread: it makes no claim from
        here on."""
        self._stopping.set()

    def send(self, change: JournalChange) -> None:
        """Raises SetupError: another executor has the run, or the value has no place."""
        self.check()
        value = b"" if isinstance(change, PassingForgotten) else bytes(change.value)
        if len(value) <= MESSAGE_VALUE_BYTES:
            self._put(change)
        else:
            self._put(msgspec.structs.replace(change, value=_FILLER), value)

    def tell(self, record: bytes) -> None:
        """What is known of the run by now; also that it goes on, so it waits for no large value.
        Raises SetupError: another executor has it."""
        self.check()
        data = _encode(RecordTold(msgspec.Raw(record)))
        self._produce(data, None)
        self._count(data)

    def settle(self) -> None:
        """Return once all that was sent has come back and was applied; blocks, for as long as the
        cluster is away. Raises SetupError: another executor has the run, or it was closed."""
        while self.backlog:
            self.check()
            if self._stopping.is_set():
                raise SetupError(f"the run {self._run_id} was left before Kafka had all of it")
            time.sleep(_POLL_S / 5)
        self.check()

    def check(self) -> None:
        if self._broken is not None:
            raise self._broken

    def close(self) -> None:
        """What has not come back in ten seconds is given up."""
        until = time.monotonic() + _CLOSE_S
        while self.backlog and self._broken is None and time.monotonic() < until:
            if self._stopping.is_set():
                break  # it was left
            time.sleep(_POLL_S / 5)
        self._stopping.set()
        self._writing.close()
        if self._thread is not None:
            self._thread.join()
        self._producer.purge()
        self._producer.flush(_POLL_S)
        self._contact.close()

    def _put(self, entry: LogEntry, value: bytes | None = None) -> None:
        """`value`: of the entry, to be written apart."""
        data = _encode(entry)
        if value is None and self._writing.is_idle:
            self._produce(data, None)
        else:
            self._writing.add(data, value)
        self._count(data)

    def _count(self, data: bytes) -> None:
        self._sent += 1
        self._sent_bytes += len(data)

    def _fail(self, error: SetupError) -> None:
        self._broken = error

    def _produce(self, data: bytes, file: str | None) -> None:
        """`file`: the name of its value."""
        headers: list[tuple[str, str | bytes | None]] = [(WRITER, self._writer)]
        if file is not None:
            headers.append((_FILE, file))
        try:
            self._producer.produce(
                RUNS,
                data,
                self._run_id,
                partition=self.partition,
                headers=headers,
                on_delivery=self._delivered,
            )
        except BufferError:
            raise Unavailable("the bus takes nothing, and too much waits for it") from None
        except kafka.KafkaException as error:
            what = f"an entry of {len(data)} bytes"
            raise SetupError(f"Kafka does not take {what}: {error.args[0].str()}") from None

    def _delivered(self, error: Any, _message: Any) -> None:
        if error is not None and not self._stopping.is_set():
            self._broken = SetupError(f"Kafka did not take a result of the run: {error.str()}")

    def _run(self) -> None:
        try:
            with opened(
                self._cluster, self._run_id, self._begin_at, **self._contact.settings()
            ) as reader:
                while not self._stopping.is_set():
                    self._follow(reader)
        except SetupError as error:
            self._broken = error
        except Exception as error:  # noqa: BLE001 - told to whoever writes next
            self._broken = SetupError(f"the run's journal cannot be kept: {error}")

    def _follow(self, reader: RunTopicReader) -> None:
        before = reader.place
        for message, entry in reader.read():
            if entry is not None:
                self._take(message, entry, reader)
            if message.headers.get(WRITER) == self._writer:
                self._returned += 1
                self._returned_bytes += len(message.value or b"")
        if reader.place != before:
            self._read_at = time.monotonic()
            self._contact.made()
            self._arrived(reader.place)
        if reader.has_caught_up:
            self._is_read.set()
        self._producer.poll(0)
        self._contact.probe(self._producer)

    def _take(self, message: ReceivedMessage, entry: LogEntry, reader: RunTopicReader) -> None:
        match entry:
            case RunClaimed():
                if message.headers.get(WRITER) == self._writer:
                    self._is_ours.set()
                elif self._is_ours.is_set():
                    raise SetupError(
                        f"the run {self._run_id} is executed on {_shown(reader.claimed_by)} now: "
                        "what was found out here up to then counts, and nothing later"
                    )
            case RecordTold():
                pass  # for who goes on with the run
            case _:
                if (name := message.headers.get(_FILE)) is not None:
                    value = msgspec.Raw(self._values.find(name))
                    entry = msgspec.structs.replace(entry, value=value)
                self._apply(entry)


def _shown(name: str) -> str:
    """As it may stand in a terminal: anybody may have written it."""
    return "".join(each for each in name[:64] if each.isprintable())
