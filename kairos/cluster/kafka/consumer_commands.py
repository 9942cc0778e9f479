"""Commands for a consumer from other threads. The thread that polls it runs them between polls."""

from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any, TypeVar

import confluent_kafka as kafka

from kairos.core import Unavailable

Where = tuple[str, int]  # a topic, and the number of a partition
Offsets = Mapping[Where, tuple[int, str]]  # the offset to go on from, and metadata
Terms = Mapping[Where, int]  # which assignment of each partition a member holds, counted
Answer = TypeVar("Answer")

_NOT_TAKEN = "the bus did not take a commit"


class ConsumerQuestions:
    """Functions to call with the consumer, each with a future for its result."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[Future[Any], Callable[[Any], Any]]] = deque()
        self._is_over = False

    def add(self, question: Callable[[Any], Answer]) -> Future[Answer]:
        answer: Future[Answer] = Future()
        self._waiting.append((answer, question))
        if self._is_over:
            self.refuse()
        return answer

    def see_to(self, consumer: Any) -> None:
        while self._waiting:
            answer, question = self._waiting.popleft()
            if not answer.set_running_or_notify_cancel():
                continue
            try:
                answer.set_result(question(consumer))
            except Exception as error:  # noqa: BLE001 - raised where it was asked
                answer.set_exception(error)

    def refuse(self) -> None:
        """Fail all waiting questions, and later ones: the consumer is closing."""
        self._is_over = True
        while self._waiting:
            answer, _ = self._waiting.popleft()
            if answer.set_running_or_notify_cancel():
                answer.set_exception(Unavailable("the bus is not read any more"))


class Commits:
    """Offsets to commit, one commit after the other.

    The cluster's reply arrives while polling, which continues while the cluster is unreachable.
    """

    def __init__(self) -> None:
        self._waiting: deque[tuple[Future[None], Offsets, Terms]] = deque()
        self._under_way: Future[None] | None = None
        self._is_over = False

    def add(self, offsets: Offsets, terms: Terms) -> Future[None]:
        """Queue a commit. It fails if a partition's assignment has changed since `terms`."""
        taken: Future[None] = Future()
        self._waiting.append((taken, offsets, terms))
        if self._is_over:
            self.refuse()
        return taken

    def see_to(self, consumer: Any, terms_now: Terms) -> None:
        while self._waiting and self._under_way is None:
            taken, offsets, terms = self._waiting.popleft()
            if not taken.set_running_or_notify_cancel():
                continue
            # A partition that was revoked and assigned again had another owner in between.
            if any(where not in terms or terms[where] != terms_now.get(where) for where in offsets):
                taken.set_exception(Unavailable(f"{_NOT_TAKEN}: the partition was revoked"))
                continue
            partitions = [kafka.TopicPartition(*where, *state) for where, state in offsets.items()]
            try:
                consumer.commit(offsets=partitions, asynchronous=True)
            except kafka.KafkaException as error:
                taken.set_exception(Unavailable(f"{_NOT_TAKEN}: {error}"))
            else:
                self._under_way = taken

    def answered(self, error: Any, partitions: Any) -> None:
        """Handle the consumer's `on_commit` callback."""
        if self._under_way is None:
            return
        taken, self._under_way = self._under_way, None
        errors = [error, *(each.error for each in partitions or ())]
        failure = next((each for each in errors if each is not None), None)
        if failure is None:
            taken.set_result(None)
        else:
            taken.set_exception(Unavailable(f"{_NOT_TAKEN}: {failure.str()}"))

    def refuse(self) -> None:
        """Fail all waiting commits, and later ones: the consumer is closing."""
        self._is_over = True
        gone = Unavailable("the bus is not read any more")
        if self._under_way is not None:
            self._under_way.set_exception(gone)
            self._under_way = None
        while self._waiting:
            taken, _, _ = self._waiting.popleft()
            if taken.set_running_or_notify_cancel():
                taken.set_exception(gone)
