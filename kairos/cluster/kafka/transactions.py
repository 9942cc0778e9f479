"""Kafka transactions for asyncio: publish handlers' output and commit offsets atomically (KIP-447).

librdkafka's calls block, so they run in a thread of their own, in short steps.
"""

import asyncio
import contextlib
import functools
import logging
import queue
import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import confluent_kafka as kafka

from kairos.cluster.kafka.cluster import KafkaCluster
from kairos.cluster.kafka.consumer_commands import Where
from kairos.cluster.kafka.producer import PARTITIONER
from kairos.core import Outgoing

logger = logging.getLogger(__name__)

# Readers wait this long, and up to 10 s more, for a transaction that a crashed member left open.
_OPEN_MS = 10_000
_STEP_S = 1.0
_AGAIN_S = 0.1
_GIVE_UP_S = 60.0
_STUCK_S = 15.0  # librdkafka's own limit, of 10 s for a request, included


class NotSent(Exception):
    """A transaction failed, or its result is unknown: look up whether it took place.

    `refused` has the reasons of permanently rejected messages, by their index in the batch.
    """

    def __init__(self, reason: str, refused: Mapping[int, str]) -> None:
        super().__init__(reason)
        self.refused = refused


class Transactions:
    """Async context manager for transactions. The caller runs one at a time.

    On exit, a transaction in progress is abandoned.
    """

    def __init__(self, cluster: KafkaCluster) -> None:
        self._settings = cluster.client(
            transactional_id=f"kairos.{secrets.token_hex(16)}",
            transaction_timeout_ms=_OPEN_MS,
            linger_ms=0,
            partitioner=PARTITIONER,
            # The next transaction is refused until the marks of the last are written.
            retry_backoff_ms=2,
            retry_backoff_max_ms=100,
            # After a crash of all brokers, a client that starts over from the bootstrap servers
            # forgets whom it waits for: `send_offsets_to_transaction` hangs (librdkafka 2.16.0).
            metadata_recovery_strategy="none",
            log_level=0,  # the consumer logs that the cluster is unreachable
        )
        self._worker = _Worker(self._settings)

    async def __aenter__(self) -> Self:
        self._worker.start()
        return self

    async def __aexit__(self, *_raised: object) -> None:
        self._worker.stop()

    async def perform(
        self,
        outgoing: Sequence[Outgoing],
        offsets: Mapping[Where, tuple[int, str]],
        group_metadata: Any,
    ) -> None:
        """Run one transaction, and return once it is committed, however long the cluster takes.

        Raises:
            NotSent: The transaction is not known to be committed. It may be retried.
        """
        if group_metadata is None:
            raise NotSent("this process is not in the group at the moment", {})
        partitions = [
            kafka.TopicPartition(*where, offset, metadata)
            for where, (offset, metadata) in offsets.items()
        ]
        worker = self._worker
        performed = worker.submit(
            functools.partial(worker.perform, outgoing, partitions, group_metadata)
        )
        while not performed.done():
            await asyncio.wait({performed}, timeout=_STEP_S)
            if self._worker.is_stuck and not performed.done():
                performed = self._replace_worker()
        performed.result()

    def _replace_worker(self) -> asyncio.Future[None]:
        self._worker.stop()
        self._worker = _Worker(self._settings)
        self._worker.start()
        return self._worker.submit(self._worker.take_over)


class _Worker:
    """A producer in a daemon thread of its own, since librdkafka's calls block.

    A worker whose call hangs nevertheless is abandoned; the next one, with the same transactional
    id, ends the transaction that it left open.
    """

    def __init__(self, settings: dict[str, Any]) -> None:
        self._settings = settings
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._stopping = threading.Event()
        self._called_at: float | None = None  # the call that has not returned
        self._producer: Any = None

    @property
    def is_stuck(self) -> bool:
        called_at = self._called_at
        return called_at is not None and time.monotonic() > called_at + _STUCK_S

    def start(self) -> None:
        threading.Thread(target=self._run, name="kafka-transactions", daemon=True).start()

    def stop(self) -> None:
        self._stopping.set()
        self._jobs.put(None)

    def submit(self, work: Callable[[], None]) -> asyncio.Future[None]:
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()
        self._jobs.put((loop, done, work))
        return done

    def _run(self) -> None:
        with contextlib.suppress(kafka.KafkaException):
            self._ready_producer()  # it takes a moment, that the first transaction would lose
        while (job := self._jobs.get()) is not None:
            loop, done, work = job
            failure: Exception | None = None
            try:
                work()
            except Exception as error:  # noqa: BLE001 - raised where it is awaited
                failure = error
            with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile
                loop.call_soon_threadsafe(_settle, done, failure)
        self._producer = None  # destroyed here: it waits for its threads, the event loop must not

    def perform(self, outgoing: Sequence[Outgoing], partitions: Any, group_metadata: Any) -> None:
        refused: dict[int, str] = {}
        try:
            producer = self._ready_producer()
            producer.begin_transaction()
            for number, each in enumerate(outgoing):
                _produce(producer, each, functools.partial(_note_refusal, refused, number))
            self._persist(producer.send_offsets_to_transaction, partitions, group_metadata)
            self._persist(producer.commit_transaction)
        except kafka.KafkaException as error:
            self._recover(error.args[0])
            raise NotSent(str(error), refused) from error

    def take_over(self) -> None:
        """Fence off a worker that hangs: the cluster rejects all that it sends later."""
        self._end_what_is_open()
        raise NotSent("the client hung", {})

    def _ready_producer(self) -> Any:
        """Return the producer, creating one if needed, which ends any transaction left open."""
        if self._producer is None:
            producer = kafka.Producer(self._settings)
            self._persist(producer.init_transactions)
            self._producer = producer
        return self._producer

    def _recover(self, error: Any) -> None:
        """Abort the transaction, so that its result can be looked up.

        If it cannot be aborted, a new producer ends it.
        """
        if self._producer is not None and not error.fatal():
            try:
                self._persist(self._producer.abort_transaction)
            except kafka.KafkaException as failure:
                logger.debug("a transaction could not be aborted: %s", failure)
            else:
                return
        self._producer = None
        self._end_what_is_open()

    def _end_what_is_open(self) -> None:
        while self._producer is None and not self._stopping.is_set():
            try:
                self._ready_producer()
            except kafka.KafkaException as error:
                logger.debug("a transactional producer is tried again: %s", error)
                self._stopping.wait(_AGAIN_S)

    def _persist(self, call: Callable[..., object], *arguments: object) -> None:
        """Repeat a call until it succeeds; librdkafka resumes it where it was.

        After a minute the error is raised: a new client may find another address of the cluster.
        """
        until = time.monotonic() + _GIVE_UP_S
        while True:
            self._called_at = time.monotonic()
            try:
                call(*arguments, _STEP_S)
            except kafka.KafkaException as error:
                is_late = time.monotonic() > until
                if not error.args[0].retriable() or is_late or self._stopping.is_set():
                    raise
                self._stopping.wait(_AGAIN_S)
            else:
                return
            finally:
                self._called_at = None


_Job = tuple[asyncio.AbstractEventLoop, asyncio.Future[None], Callable[[], None]]


def _settle(done: asyncio.Future[None], failure: Exception | None) -> None:
    if done.done():
        return
    if failure is None:
        done.set_result(None)
    else:
        done.set_exception(failure)
        done.exception()  # whoever awaited it may have been cancelled


def _produce(producer: Any, outgoing: Outgoing, on_delivery: Callable[[Any, Any], None]) -> None:
    topic, message = outgoing
    headers = list(message.headers.items())
    while True:
        try:
            producer.produce(
                topic, message.value, message.key, headers=headers, on_delivery=on_delivery
            )
        except BufferError:
            producer.poll(_STEP_S)  # until some are sent
        else:
            return


_REFUSALS = (
    kafka.KafkaError.MSG_SIZE_TOO_LARGE,
    kafka.KafkaError.TOPIC_EXCEPTION,
    kafka.KafkaError.TOPIC_AUTHORIZATION_FAILED,
    kafka.KafkaError.POLICY_VIOLATION,
    kafka.KafkaError.INVALID_RECORD,
    kafka.KafkaError.UNKNOWN_TOPIC_OR_PART,
    kafka.KafkaError._UNKNOWN_TOPIC,
    kafka.KafkaError._UNKNOWN_PARTITION,
)


def _note_refusal(refused: dict[int, str], number: int, error: Any, _message: Any) -> None:
    if error is not None and error.code() in _REFUSALS:
        refused[number] = error.str()
