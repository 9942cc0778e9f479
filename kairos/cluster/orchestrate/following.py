"""State of the active orchestrator: workflows, learnt profiles, and the offset for a successor.

It is built from the records of `kairos.events`; records of superseded balancers do not count.
"""

import logging
from collections import OrderedDict

import msgspec

from kairos.cluster.kafka.items import ReceivedMessage
from kairos.cluster.pool.messages import POOL_HEADER, TAKEOVER_HEADER, Epochs, read_record
from kairos.core import (
    SECOND,
    Arrived,
    Learner,
    OpenedWorkflow,
    Orchestrator,
    ProfilesLearnt,
    Record,
    Topic,
    WorkEstimates,
    WorkflowKey,
    workflow_key,
)
from kairos.observe import UNREADABLE, leave_out

logger = logging.getLogger(__name__)

METADATA_BYTES = 4_000  # Kafka takes 4,096
_MAX_POOLS = 1_000
_NAMES = 256  # characters of a pool's
_AHEAD_US = 3_600 * SECOND  # by which clocks may disagree


class CommittedProgress(msgspec.Struct, frozen=True, kw_only=True):
    """Progress, committed with the offset of the oldest open workflow's first event."""

    learnt: int  # workflows that ended before this offset have been learnt from
    silent_until: int  # and those that had been idle for too long at this instant
    began_at: int | None  # when records began to be followed
    epochs: dict[str, int] = {}  # in force at the offset: see `Records`

    def encoded(self) -> str:
        text = msgspec.json.encode(self).decode()
        if len(text.encode()) > METADATA_BYTES:  # of some hundred pools
            text = msgspec.json.encode(msgspec.structs.replace(self, epochs={})).decode()
        return text


def read_progress(metadata: str) -> CommittedProgress | None:
    """Parse committed progress. None: nothing is committed, or it is unreadable (logged)."""
    if not metadata:
        return None
    try:
        return msgspec.json.decode(metadata, type=CommittedProgress)
    except (msgspec.DecodeError, UnicodeEncodeError) as error:
        logger.warning("cannot read the committed progress of learning: %s", error)
        return None


class Following:
    """State built from the events, which arrive by `take`.

    Its time is that of the newest record, plus the duration of silence since.
    """

    def __init__(
        self,
        known: ProfilesLearnt,
        committed: int,
        since: CommittedProgress | None,
        *,
        idle_us: int,
    ) -> None:
        """Create the state of an orchestrator that begins to follow the events.

        `known` is what has been published. `committed` is the first offset to be read; negative:
        unknown. `since` was committed with it.
        """
        began_at = since.began_at if since is not None else None
        self.orchestrator = Orchestrator(idle_us=idle_us, began_at=began_at)
        self.learner = Learner(self.orchestrator)
        self.learner.restore(known)
        self.estimates = WorkEstimates()
        self.estimates.learn(known)
        self.records = 0
        self._records = Records(since.epochs if since is not None else {})
        self._since = since  # None once all that was learnt has been read again
        self._next = committed
        self._is_first = committed >= 0
        self._at = 0
        self._silent_us = 0
        self._began: OrderedDict[WorkflowKey, tuple[OpenedWorkflow, int]] = OrderedDict()

    def take(self, message: ReceivedMessage) -> None:
        offset = message.offset
        if self._is_first and offset != self._next:
            self._begin_elsewhere(offset)
        self._is_first = False
        if self._since is not None and offset >= self._since.learnt:
            self._forget_what_was_learnt(self._since)
        record = self._records.read(message)
        if record is not None and self._observe(record, message):
            self._at, self._silent_us = max(self._at, record.at), 0
            self.records += 1
            if isinstance(record.event, Arrived):
                self._note(workflow_key(record.event.request), offset)
        self._next = offset + 1
        if self._since is not None:
            if self._next >= self._since.learnt:
                self._forget_what_was_learnt(self._since)
            else:
                self.orchestrator.take_ended()

    def _observe(self, record: Record, message: ReceivedMessage) -> bool:
        """Observe a record.

        Return whether that worked: a faulty record must not end the process.
        """
        try:
            self.orchestrator.observe(record)
        except Exception as error:  # noqa: BLE001 - a bug in Kairos
            leave_out(message, error)
            return False
        return True

    def caught_up(self) -> None:
        """Note that all events on Kafka have been read."""
        if self._since is not None:
            self._forget_what_was_learnt(self._since)

    def silent(self, for_us: int) -> None:
        """Advance time by a silent interval, and expire idle workflows."""
        self._silent_us += for_us
        self.orchestrator.expire(self._at + self._silent_us)

    def progress(self) -> tuple[int, CommittedProgress] | None:
        """Return the offset and the progress to commit once all that was learnt is published.

        None: there is nothing new to commit.
        """
        if self._since is not None or self._next < 0:
            return None
        oldest = self._oldest()
        offset = self._next if oldest is None else oldest
        return offset, CommittedProgress(
            learnt=self._next,
            silent_until=self._at + self._silent_us,
            began_at=self.orchestrator.began_at,
            epochs=self._records.epochs(offset),
        )

    def _begin_elsewhere(self, offset: int) -> None:
        """Note that Kafka has deleted the committed offset, and with it part of open workflows."""
        logger.warning("the events from %d to %d are lost to learning", self._next, offset)
        self.orchestrator.began_at = None  # set by the next record
        if offset < self._next:  # the topic has been recreated
            self._since = None

    def _forget_what_was_learnt(self, since: CommittedProgress) -> None:
        self.orchestrator.expire(since.silent_until)
        self.orchestrator.take_ended()
        self._since = None

    def _note(self, key: WorkflowKey, offset: int) -> None:
        """Note the offset at which a workflow began, if it was not open before."""
        workflow = self.orchestrator.open_workflow(key)
        known = self._began.get(key)
        if workflow is not None and (known is None or known[0] is not workflow):
            self._began.pop(key, None)
            self._began[key] = workflow, offset

    def _oldest(self) -> int | None:
        """Return the first offset of the oldest open workflow, or None."""
        while self._began:
            key, (workflow, offset) = next(iter(self._began.items()))
            if self.orchestrator.open_workflow(key) is workflow:
                return offset
            del self._began[key]
        return None


class Records:
    """Reader of the events in their order, which skips records of superseded balancers.

    The epoch of a balancer's records is the offset at which it announced its takeover.
    """

    def __init__(self, epochs: dict[str, int]) -> None:
        """Create the reader. `epochs`: in force at the first message, by pool."""
        self._known = epochs
        self._first: int | None = None
        self._epochs: dict[str, Epochs] = {}
        self._proven: set[str] = set()  # pools with at least one record
        self._announced = {pool: [epoch] for pool, epoch in epochs.items()}  # ascending

    def read(self, message: ReceivedMessage) -> Record | None:
        """Return the message's record, or None.

        Untrusted: malformed messages are skipped and logged.
        """
        if self._first is None:
            self._first = message.offset
        pool = message.headers.get(POOL_HEADER, "")
        epochs = self._epochs.get(pool)
        if epochs is None:
            if not self._has_room() or len(pool) > _NAMES:
                leave_out(message, "there are too many pools, or it has too long a name")
                return None
            epochs = Epochs(self._first, self._known.get(pool))
        if TAKEOVER_HEADER in message.headers:
            self._epochs[pool] = epochs
            epochs.announce(message.offset)
            self._announced.setdefault(pool, []).append(message.offset)
            return None
        try:
            epoch, decision = read_record(message)
        except UNREADABLE as error:
            leave_out(message, error)
            return None
        record = decision.record
        if record.at > message.at + _AHEAD_US:
            leave_out(message, "its time is in the future")
            return None
        if epochs.is_forged(epoch):
            leave_out(message, f"no balancer announced itself at {epoch}")
            return None
        if not epochs.count(epoch):
            logger.info(
                "%s:%d is of a balancer that had been replaced", Topic.EVENTS, message.offset
            )
            return None
        self._epochs[pool] = epochs
        self._proven.add(pool)
        return record

    def _has_room(self) -> bool:
        """Return whether one more pool fits; a pool without any record is evicted to make room."""
        if len(self._epochs) >= _MAX_POOLS:
            unproven = next((each for each in self._epochs if each not in self._proven), None)
            if unproven is None:
                return False
            del self._epochs[unproven]
            self._announced.pop(unproven, None)
        return True

    def epochs(self, offset: int) -> dict[str, int]:
        """Return the epochs in force at an offset. No earlier offset may be asked for later."""
        in_force: dict[str, int] = {}
        for pool, announced in self._announced.items():
            before = [epoch for epoch in announced if epoch < offset]
            if before:
                in_force[pool] = before[-1]
                del announced[: len(before) - 1]
        return in_force
