"""State of the active orchestrator: workflows, learnt profiles, and the offset for a successor."""

import logging
from collections import OrderedDict

from kairos.cluster.kafka.items import ReceivedMessage
from kairos.cluster.orchestrate.committed_progress import CommittedProgress
from kairos.cluster.orchestrate.records import Records
from kairos.core import (
    Arrived,
    Learner,
    OpenedWorkflow,
    Orchestrator,
    ProfilesLearnt,
    Record,
    WorkEstimates,
    WorkflowKey,
    workflow_key,
)
from kairos.observe import leave_out

logger = logging.getLogger(__name__)


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
