"""The thread that polls a consumer, and makes every call to it.

A commit from another thread would block for as long as this one polls (confluent-kafka 2.16).
"""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

import confluent_kafka as kafka
import msgspec

from kairos.cluster.kafka.connectivity import Contact, is_transient
from kairos.cluster.kafka.consumer_commands import Commits, ConsumerQuestions, Terms, Where
from kairos.cluster.kafka.items import Assigned, CaughtUp, Item, Passed, Revoked, convert_message
from kairos.core import KairosError, TopicMissing, Unavailable

logger = logging.getLogger(__name__)

_POLL_S = 0.05
_ANSWER_S = 2.0  # of the cluster; then it is asked again
_VISIBLE_S = 5.0  # until a new topic is known to every broker
_PATIENCE_S = 1.0  # before partitions are paused: what has been fetched of them is fetched again
_NAP_S = 0.001
_AGAIN_S = 0.2
_SILENT_S = 60.0  # between warnings that the cluster does not answer


class Membership(msgspec.Struct, frozen=True):
    """This member's place in the group after a rebalance."""

    metadata: Any  # for transactions; None: there is none at the moment
    terms: Terms
    id: str  # empty: it has none at the moment


class PollThread:
    """A thread that reads items until it is stopped, then leaves the group and resolves `ended`."""

    def __init__(
        self,
        settings: dict[str, object],
        topics: Sequence[str],
        *,
        contact: Contact,
        first: int | None,
        tells_ends: bool,
        put: Callable[[Item | Membership | Exception], None],
        is_full: Callable[[], bool],
    ) -> None:
        """Create the thread.

        `first` is the offset to read from, or an instant in ms; None: the group's committed
        offset. With `tells_ends`, a `Passed` is put whenever the end of a partition is reached.
        `put` receives each item; `is_full` says whether it takes nothing more at the moment.
        """
        self._settings = settings
        self._topics = list(topics)
        self._contact = contact
        self._first = first
        self._tells_ends = tells_ends
        self._put = put
        self._is_full = is_full
        self._stopping = threading.Event()
        self.questions = ConsumerQuestions()
        self.commits = Commits()
        self._reading: set[Where] = set()  # partitions whose end has not been reached
        self._assignments = 0
        self._id = ""  # in the group
        self._is_paused = False
        self._failure: Exception | None = None
        self.terms: dict[Where, int] = {}
        self.ended: Future[None] = Future()

    def start(self) -> None:
        self._consumer = kafka.Consumer(self._settings | {"on_commit": self.commits.answered})
        threading.Thread(target=self._run, name="kafka-consumer", daemon=True).start()

    def stop(self) -> None:
        self._stopping.set()

    def _run(self) -> None:
        try:
            self._begin()
            while not self._stopping.is_set():
                self._poll()
                if self._is_full():
                    self._wait_for_room()
        except KairosError as error:
            self._put(error)
        except Exception as error:  # noqa: BLE001 - raised where the stream is read
            self._put(Unavailable(f"the bus cannot be read: {error}"))
        finally:
            self._end()

    def _end(self) -> None:
        # A query to a consumer that is closing may hang, and block all threads (it has the GIL).
        self._stopping.set()
        try:
            self._consumer.close()
        except Exception as error:  # noqa: BLE001 - `ended` must be resolved in any case
            logger.warning("leaving the bus: %s", error)
        finally:
            self._contact.close()
            self.questions.refuse()
            self.commits.refuse()
            self.ended.set_result(None)

    def _poll(self) -> None:
        record = self._consumer.poll(_POLL_S)
        if self._failure is not None:
            raise self._failure
        if record is not None:
            self._take(record)
        self._see_to_wishes()
        self._contact.probe(self._consumer)

    def _wait_for_room(self) -> None:
        """Wait until the receiver has room.

        After a second the partitions are paused and polling goes on, so that rebalances are
        handled.
        """
        waits_until = time.monotonic() + _PATIENCE_S
        while self._is_full() and time.monotonic() < waits_until and not self._stopping.is_set():
            time.sleep(_NAP_S)
            self._see_to_wishes()
        if not self._is_full() or self._stopping.is_set():
            return
        self._is_paused = True
        self._consumer.pause(self._consumer.assignment())
        while self._is_full() and not self._stopping.is_set():
            self._poll()
        self._is_paused = False
        self._consumer.resume(self._consumer.assignment())

    def _begin(self) -> None:
        numbers = {topic: self._partitions(topic) for topic in self._topics}
        if self._stopping.is_set():
            return
        if self._first is None:
            self._consumer.subscribe(
                self._topics,
                on_assign=self._careful(self._assigned),
                on_revoke=self._careful(self._revoked),
            )
            return
        partitions = [
            kafka.TopicPartition(topic, number, self._first)
            for topic in self._topics
            for number in numbers[topic]
        ]
        self._reading = {(each.topic, each.partition) for each in partitions}
        if self._first >= 0:
            partitions = self._insist(self._consumer.offsets_for_times, partitions)
        self._consumer.assign(partitions)

    def _partitions(self, topic: str) -> list[int]:
        gives_up_at = time.monotonic() + _VISIBLE_S
        while not self._stopping.is_set():
            described = self._insist(self._listed, topic)
            if not described:
                break
            found = described.topics[topic]
            if found.error is None:
                return sorted(found.partitions)
            if time.monotonic() > gives_up_at:
                raise TopicMissing(topic, found.error.str())
            self._stopping.wait(_AGAIN_S)
        return []

    def _listed(self, topic: str, answer_s: float) -> Any:
        self._consumer.poll(0)  # says whether the cluster is lost
        return self._consumer.list_topics(topic, answer_s)

    def _insist(self, ask: Callable[[Any, float], Any], what: Any) -> Any:
        """Repeat a query until the cluster answers; return nothing if the thread is stopped."""
        warns_at = time.monotonic() + _SILENT_S
        while not self._stopping.is_set():
            try:
                return ask(what, _ANSWER_S)
            except kafka.KafkaException as error:
                if not is_transient(error.args[0]):
                    raise
                if time.monotonic() > warns_at:
                    warns_at += _SILENT_S
                    self._warn(error.args[0])
            self._stopping.wait(_AGAIN_S)
        return []

    def _warn(self, error: Any) -> None:
        what_to_do = ""
        if error.code() == kafka.KafkaError.UNSTABLE_OFFSET_COMMIT:
            what_to_do = (
                "; a transaction that the cluster never ended holds this up: "
                "`kafka-transactions.sh find-hanging` finds it, and `abort` ends it"
            )
        topics = ", ".join(self._topics)
        logger.warning("reading %s waits: %s%s", topics, error.str(), what_to_do)

    def _careful(self, callback: Callable[[Any, Any], None]) -> Callable[[Any, Any], None]:
        """Wrap a rebalance callback so that its exception is raised after the poll.

        librdkafka does not propagate every exception from a callback.
        """

        def call(consumer: Any, partitions: Any) -> None:
            try:
                callback(consumer, partitions)
            except Exception as error:  # noqa: BLE001 - raised after the poll
                self._failure = error

        return call

    def _assigned(self, consumer: Any, partitions: Any) -> None:
        # While a transaction of the previous owner is open, this waits for its end.
        known = self._insist(self._committed, partitions) if partitions else []
        for each in known:
            self._assignments += 1
            self.terms[each.topic, each.partition] = self._assignments
        if not self._stopping.is_set():
            self._id = consumer.memberid() or ""
        self._tell_membership(consumer)  # first: a reader may commit once it has a partition
        for each in known:
            self._reading.add((each.topic, each.partition))
            self._put(Assigned(each.topic, each.partition, each.offset, each.metadata or ""))
        consumer.incremental_assign(known)
        if self._is_paused:
            consumer.pause(known)

    def _tell_membership(self, consumer: Any) -> None:
        metadata = None
        if not self._stopping.is_set():
            with suppress(RuntimeError):  # in no group at the moment
                metadata = consumer.consumer_group_metadata()
        self._put(Membership(metadata, dict(self.terms), self._id))

    def _committed(self, partitions: Any, answer_s: float) -> Any:
        known = self._consumer.committed(partitions, answer_s)
        if failed := [each.error for each in known if each.error is not None]:
            raise kafka.KafkaException(failed[0])
        return known

    def _revoked(self, consumer: Any, partitions: Any) -> None:
        for each in partitions:
            self.terms.pop((each.topic, each.partition), None)
            self._put(Revoked(each.topic, each.partition))
        consumer.incremental_unassign(partitions)
        self._tell_membership(consumer)  # last: it must not cover the revoked partitions

    def _see_to_wishes(self) -> None:
        self.questions.see_to(self._consumer)
        self.commits.see_to(self._consumer, self.terms)

    def _take(self, record: Any) -> None:
        error = record.error()
        if error is None:
            self._contact.made()
            if (item := convert_message(record)) is not None:
                self._put(item)
        elif error.code() == kafka.KafkaError._PARTITION_EOF:
            self._contact.made()
            where = (record.topic(), record.partition())
            if self._tells_ends:
                self._put(Passed(*where, record.offset()))
            if where in self._reading:
                self._reading.discard(where)
                self._put(CaughtUp(*where))
        elif error.fatal() or not is_transient(error):
            raise Unavailable(f"the bus cannot be read: {error.str()}")
        else:
            logger.warning("reading %s: %s", ", ".join(self._topics), error.str())
