"""A batch that runs while users wait for their answers, in virtual time.

Its lines go as the live gateway sends them (`batches/driver.py`): some always wait in the
queue, of a class of service that takes what is spare. Beyond it nothing is modelled: lines are
there at once, and what they were answered is kept in no time.
"""

from collections.abc import Sequence
from functools import partial

import msgspec

from kairos.batches.batch_turns import lines_ahead
from kairos.core import SECOND, Arrived, KairosError, Record, Request
from kairos.simulate.clock import VirtualClock
from kairos.simulate.engine.sequence import EngineCall
from kairos.simulate.users import MODEL, TENANT, Feed, Users
from kairos.simulate.workload.prompt import PromptPiece, prefix_hashes
from kairos.simulate.workload.workflows import Submission

_NAME = "batch"
_LOOK_US = 50_000  # between two looks at how many lines wait, as live


class BatchDocument(msgspec.Struct, frozen=True):
    """A line of a batch: tokens of its prompt, which begins with instructions common to all lines,
    and of its answer."""

    prompt_tokens: int
    answer_tokens: int
    shared_tokens: int = 0


class BatchBesideUsers:
    """A `Clients`.

    The clock stops when the users' workflows have ended, and the lines too if `to_the_end`.
    """

    def __init__(
        self,
        documents: Sequence[BatchDocument],
        submissions: Sequence[Submission],
        clock: VirtualClock,
        feed: Feed,
        *,
        service_class: str = "batch",
        to_the_end: bool = False,
    ) -> None:
        self._documents, self._clock, self._feed = documents, clock, feed
        self._class, self._to_the_end = service_class, to_the_end
        self._users = Users(clock, feed, tell_lengths=False)
        for each in submissions:
            self._users.expect(each)
        self._begun = 0
        self._in_flight: dict[str, BatchDocument] = {}
        self._waiting: set[str] = set()
        self.done: list[tuple[int, BatchDocument]] = []  # when each ended, in that order
        self.retries = 0
        self.failed = self._users.failed
        self.left = self._count_left()
        clock.call_at(clock.now(), self._look)

    def lengths(self, request_id: str) -> tuple[int, int]:
        document = self._in_flight.get(request_id)
        if document is None:
            return self._users.lengths(request_id)
        return document.prompt_tokens, document.answer_tokens

    def engine_call(self, request_id: str, priority: int = 0) -> EngineCall:
        document = self._in_flight.get(request_id)
        if document is None:
            return self._users.engine_call(request_id, priority)
        self._waiting.discard(request_id)
        return EngineCall(
            id=request_id,
            prompt=_prompt(request_id, document),
            completion_tokens=document.answer_tokens,
            priority=priority,
        )

    def identified(self, record: Record) -> Record:
        event = record.event
        if type(event) is Arrived and event.request.app == _NAME:
            return record
        return self._users.identified(record)

    def finish_call(self, request_id: str, cached_tokens: int) -> None:
        document = self._in_flight.pop(request_id, None)
        if document is None:
            self._users.finish_call(request_id, cached_tokens)
        else:
            self.done.append((self._clock.now(), document))
            self._send()
        self._note_left()

    def fail_call(self, request_id: str, error: KairosError) -> None:
        if request_id not in self._in_flight:
            self._users.fail_call(request_id, error)
            self._note_left()
            return
        self.retries += 1
        self._waiting.discard(request_id)
        again = partial(self._ask, request_id)
        self._clock.call_at(self._clock.now() + (error.retry_after_s or 1) * SECOND, again)

    def _count_left(self) -> int:
        return self._users.left + (len(self._documents) - len(self.done)) * self._to_the_end

    def _note_left(self) -> None:
        self.left = self._count_left()
        if not self.left:
            self._clock.stop()

    def _look(self) -> None:
        self._send()
        if len(self.done) < len(self._documents):
            self._clock.call_at(self._clock.now() + _LOOK_US, self._look)

    def _send(self) -> None:
        while len(self._waiting) < lines_ahead(1) and self._begun < len(self._documents):
            request_id = f"{_NAME}/{self._begun}"
            self._in_flight[request_id] = self._documents[self._begun]
            self._begun += 1
            self._ask(request_id)

    def _ask(self, request_id: str) -> None:
        document, now = self._in_flight[request_id], self._clock.now()
        self._waiting.add(request_id)
        request = Request(
            id=request_id,
            tenant=TENANT,
            workflow_id=request_id,
            app=_NAME,
            agent="line",
            service_class=self._class,
            model=MODEL,
            workflow_started_at=now,
            arrived_at=now,
            prompt_tokens=document.prompt_tokens,
            completion_tokens=256,
            prefix=prefix_hashes(_prompt(request_id, document)),
            prefix_units=document.prompt_tokens,
        )
        try:
            self._feed(Arrived(request))
        except KairosError as error:
            self.fail_call(request_id, error)


def _prompt(request_id: str, document: BatchDocument) -> tuple[PromptPiece, ...]:
    own = PromptPiece(request_id, document.prompt_tokens - document.shared_tokens)
    if not document.shared_tokens:
        return (own,)
    return PromptPiece(f"{_NAME}/instructions", document.shared_tokens), own
