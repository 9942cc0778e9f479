"""An orchestrator process: on standby until Kafka assigns it the partition of the events.

It then rebuilds its state by reading from the first event of the oldest open workflow. Each
orchestrator notifies the balancers of pools when workflows have ended.
"""

import asyncio
import logging
import secrets
from collections.abc import Coroutine, Sequence
from contextlib import aclosing, suppress

import msgspec

from kairos.cluster.bus.envelope import read_envelope
from kairos.cluster.kafka.cluster import KafkaCluster
from kairos.cluster.kafka.items import Assigned, CaughtUp, Item, Passed, ReceivedMessage, Revoked
from kairos.cluster.kafka.producer import Producer
from kairos.cluster.kafka.profiles_topic import follow, publish
from kairos.cluster.kafka.subscription import Subscription
from kairos.cluster.local.learning import LEARN_S, learn_once
from kairos.cluster.orchestrate.following import CommittedProgress, Following, read_progress
from kairos.cluster.pool.messages import TOLD, TYPE_HEADER, Told
from kairos.core import (
    SECOND,
    Bus,
    InvalidRequest,
    Message,
    Orchestrator,
    Outgoing,
    Topic,
    Unavailable,
    WorkEstimates,
    WorkflowEnded,
)
from kairos.host import WallClock
from kairos.observe import count_left_out

logger = logging.getLogger(__name__)

GROUP = "kairos.orchestrator"
RESULTS_GROUP = "kairos.orchestrator.results"
SAVE_S = 5.0  # between commits
TENANT = "default"  # of all agents on the bus
_AT_ONCE = 100
_LEAVE_S = 5.0
_TO_LEARN = 5_000  # workflows that have ended, beyond which learning goes before reading


class Ends:
    """Ends of workflows: those whose result is on `kairos.results`, or that a client reports."""

    def __init__(self, bus: Bus, pools: Sequence[str]) -> None:
        """Take the pools that workflows may have been in: each is notified of every end."""
        self.told = 0
        self._bus = bus
        self._pools = pools
        self._id = f"orchestrator-{secrets.token_hex(8)}"

    async def run(self) -> None:
        """Read results until cancelled.

        A result is handled once the workflow's end is published.
        """
        await self._bus.consume(Topic.RESULTS, RESULTS_GROUP, self._ended, concurrency=_AT_ONCE)

    async def tell(self, event: WorkflowEnded) -> None:
        """Publish a workflow's end; return once it is on the bus."""
        for topic, message in self._telling(event):
            await self._bus.publish(topic, message)

    async def _ended(self, message: Message) -> Sequence[Outgoing]:
        try:
            envelope = read_envelope(message)
        except InvalidRequest as error:
            logger.warning("a message of %s is left out: %s", Topic.RESULTS, error)
            count_left_out(Topic.RESULTS)
            return ()
        return self._telling(WorkflowEnded(TENANT, envelope.workflow_id))

    def _telling(self, event: WorkflowEnded) -> list[Outgoing]:
        self.told += 1
        value, headers = msgspec.json.encode(Told(self._id, event)), {TYPE_HEADER: TOLD}
        messages = (Message(key=pool, value=value, headers=headers) for pool in self._pools)
        return [(Topic.REQUESTS, message) for message in messages]


class Follower:
    """An orchestrator: `run` it until cancelled. It is also the `Source` of what the routes show.

    Every `SAVE_S` all that was learnt is published, then the offset is committed from which open
    workflows can be rebuilt. So a crash loses nothing; workflows that ended in the last `SAVE_S`
    may be learnt from twice, if their profiles had been published.
    """

    def __init__(
        self, cluster: KafkaCluster, producer: Producer, ends: Ends, *, idle_us: int
    ) -> None:
        self.following: Following | None = None  # None: on standby
        self.is_rebuilding = False
        self.published = 0  # facts
        self._cluster = cluster
        self._producer = producer
        self._ends = ends
        self._idle_us = idle_us
        self._clock = WallClock()
        self._newest_at = 0  # of the messages that were read, by Kafka's clock
        self._has_read_all = False
        self._is_silent = False  # since the last commit
        self._committed_at: float | None = None

    @property
    def orchestrator(self) -> Orchestrator:
        return self._active().orchestrator

    @property
    def estimates(self) -> WorkEstimates:
        return self._active().estimates

    @property
    def behind_us(self) -> int:
        """Age of the newest event read, while more events are waiting; else 0."""
        if self.following is None or self._has_read_all or not self._newest_at:
            return 0
        return max(0, self.now() - self._newest_at)

    def now(self) -> int:
        return self._clock.now()

    async def end(self, event: WorkflowEnded) -> None:
        await self._ends.tell(event)

    def _active(self) -> Following:
        if self.following is None:
            raise Unavailable("this orchestrator is on standby: another one follows the workflows")
        return self.following

    async def run(self) -> None:
        async with Subscription(self._cluster, [Topic.EVENTS], GROUP, tells_ends=True) as events:
            try:
                await self._go_on(events)
            finally:
                with suppress(TimeoutError, Unavailable):
                    await asyncio.wait_for(self._learn(events, whole=True), _LEAVE_S)

    async def _go_on(self, events: Subscription) -> None:
        clock = asyncio.get_running_loop().time
        saves_at = clock() + SAVE_S
        while True:
            learns_at = clock() + LEARN_S
            while clock() < learns_at and not self._has_much_to_learn():
                for item in await _next(events, learns_at):
                    await self._take(item)
                await asyncio.sleep(0)  # batches may come without a pause
            is_due = clock() >= saves_at
            await self._finish(self._learn(events, whole=is_due))
            if is_due:
                saves_at = clock() + SAVE_S

    def _has_much_to_learn(self) -> bool:
        return self.following is not None and self.following.orchestrator.to_learn >= _TO_LEARN

    async def _take(self, item: Item) -> None:
        match item:
            case Assigned():
                await self._rebuild(item)
            case Revoked():
                self.following = None
                logger.info("this process has stopped following the events")
            case ReceivedMessage() if self.following is not None:
                self._newest_at = item.at
                self._has_read_all = self._is_silent = False
                self.following.take(item)
            case Passed():
                self._has_read_all = True
            case CaughtUp() if self.following is not None:
                self.following.caught_up()
                self.is_rebuilding = False
                logger.info("this process follows the events")

    async def _rebuild(self, assigned: Assigned) -> None:
        self.is_rebuilding, self.following = True, None
        async with aclosing(follow(self._cluster)) as published:
            known = await anext(published)
        since = read_progress(assigned.metadata)
        self.following = Following(known, assigned.offset, since, idle_us=self._idle_us)
        self._has_read_all = self._is_silent = False
        self._committed_at = None

    async def _finish(self, learning: Coroutine[None, None, None]) -> None:
        """Await learning, and let it finish even when cancelled.

        If that takes too long, nothing is committed any more, so its part will be learnt again.
        """
        task = asyncio.create_task(learning)
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            try:
                await asyncio.wait_for(task, _LEAVE_S)
            except TimeoutError:
                self.following = None
            raise

    async def _learn(self, events: Subscription, *, whole: bool) -> None:
        """Learn from ended workflows; with `whole`, publish all changes and commit the progress.

        An error in learning is logged, and the ended workflows are skipped.
        """
        following = self.following
        if following is None:
            return
        progress = following.progress() if whole else None  # nothing is read until this has ended
        try:
            learnt = await learn_once(following.learner, whole=whole)
        except Exception:
            logger.exception("recently ended workflows are not learnt from: an error in Kairos")
        else:
            if learnt is not None:
                await publish(self._producer, learnt)
                following.estimates.learn(learnt)
                self.published += 1
        if progress is not None:
            await self._commit(events, following, *progress)

    async def _commit(
        self, events: Subscription, following: Following, offset: int, progress: CommittedProgress
    ) -> None:
        try:
            await events.commit({(Topic.EVENTS, 0): (offset, progress.encoded())})
        except Unavailable as error:
            logger.info("%s", error)  # another member's by now, or the bus is away: tried again
            return
        now = asyncio.get_running_loop().time()
        if self._is_silent and self._has_read_all and self._committed_at is not None:
            # Only time while Kafka answers: an outage does not mean that workflows are idle.
            following.silent(int(min(now - self._committed_at, 2 * SAVE_S) * SECOND))
        self._committed_at, self._is_silent = now, True


async def _next(events: Subscription, until: float) -> list[Item]:
    try:
        async with asyncio.timeout_at(until):
            return await events.batch()
    except TimeoutError:
        return []
