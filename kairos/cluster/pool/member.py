"""A pool member: on standby until Kafka assigns it the pool's partition of `kairos.requests`.

It then reads back the pool's earlier decisions from `kairos.events`, and takes over as the active
balancer.
"""

import asyncio
import contextlib
import logging
import re
from collections.abc import Callable

from kairos.cluster.decisions.open_calls import OpenCallTable
from kairos.cluster.kafka.cluster import KafkaCluster
from kairos.cluster.kafka.consumer_commands import Where
from kairos.cluster.kafka.items import Assigned, CaughtUp, Item, ReceivedMessage, Revoked
from kairos.cluster.kafka.producer import Producer
from kairos.cluster.kafka.profiles_topic import follow
from kairos.cluster.kafka.subscription import Start, Subscription
from kairos.cluster.kafka.topic_setup import partition_of
from kairos.cluster.pool.active import ActiveBalancer
from kairos.cluster.pool.bus_calls import BusCalls
from kairos.cluster.pool.decision_publisher import DecisionPublisher
from kairos.cluster.pool.messages import POOL_HEADER, TAKEOVER_HEADER, Epochs, read_record
from kairos.cluster.pool.performer import Performer
from kairos.core import (
    SECOND,
    Balancer,
    Clock,
    Entitlements,
    EntitlementsChanged,
    InstanceJoined,
    InstanceLeft,
    InstanceStatus,
    Observer,
    Record,
    Topic,
    Unavailable,
)
from kairos.observe import leave_out

logger = logging.getLogger(__name__)

_COMMIT_S = 0.5
_LAST_COMMIT_S = 2.0
_MARGIN_US = 10 * SECOND
_MISSING_US = 5 * SECOND
_AGAIN_S = 1.0
_EPOCH = "epoch"  # in a commit: the one in force
_SINCE = "events-since"  # in a commit: the instant from which a successor reads what was decided


class _Superseded(Exception):
    """Decisions made here are void, though this process may still own the partition.

    The next owner announces itself again.
    """


class PoolMember:
    """A member of a pool: `run` it until cancelled.

    `balancer` is the deciding one or, on standby, an idle one.
    """

    def __init__(
        self,
        cluster: KafkaCluster,
        pool: str,
        producer: Producer,
        performer: Performer,
        calls: BusCalls,
        clock: Clock,
        new_balancer: Callable[[], Balancer],
        observers: tuple[Observer, ...],
    ) -> None:
        self.balancer = new_balancer()
        self._entitlements = self.balancer.entitlements
        self.active: ActiveBalancer | None = None
        self._cluster = cluster
        self._pool = pool
        self._producer = producer
        self._performer = performer
        self._calls = calls
        self._clock = clock
        self._new_balancer = new_balancer
        self._observers = observers
        self._instances: dict[str, InstanceJoined] = {}
        self._backlog: list[ReceivedMessage] | None = None  # until all of it is here
        self._read_to = -1
        self._caught_up_at: int | None = None
        self._beside: list[asyncio.Task[None]] = []
        self._partition = -1
        self._epoch = self._announced_at = -1
        self._is_superseded = False
        self._was_done: dict[Where, tuple[int, str]] = {}
        self._others: dict[int, int] = {}  # partitions of other pools, and how far they were read

    def feed(self, event: InstanceJoined | InstanceLeft | InstanceStatus) -> None:
        """Note news of an instance from this process's own monitor.

        Its status is used at once, or not at all.
        """
        if isinstance(event, InstanceJoined):
            self._instances[event.instance.id] = event
        elif isinstance(event, InstanceLeft):
            self._instances.pop(event.instance_id, None)
        if self.active is not None and self._backlog is None:
            self.active.feed(event)

    def entitle(self, entitlements: Entitlements) -> None:
        """Apply these entitlements from now on or, on standby, after a takeover."""
        self._entitlements = entitlements
        if self.active is not None and self._backlog is None:
            self._put_in_force(self.active)

    def _put_in_force(self, active: ActiveBalancer) -> None:
        """Apply this process's entitlements, where the recalled state has others."""
        if self._entitlements != active.balancer.entitlements:
            active.feed(EntitlementsChanged(self._entitlements))

    async def run(self) -> None:
        self._partition = partition_of(self._pool, await self._producer.partitions(Topic.REQUESTS))
        while True:
            try:
                await self._take_part(f"kairos.balancer.{self._pool}")
            except* (_Superseded, Unavailable) as errors:
                logger.warning("pool %s: %s", self._pool, errors.exceptions[0])
            except* Exception:  # a bug in Kairos; calls that are performed here go on
                logger.exception("pool %s: reading decisions back once more", self._pool)
            await asyncio.sleep(_AGAIN_S)

    async def _take_part(self, group: str) -> None:
        """Take part in the group until cancelled.

        Raises:
            _Superseded, Unavailable: In an exception group.
        """
        self._others = {}
        async with (
            Subscription(self._cluster, [Topic.REQUESTS], group) as requests,
            asyncio.TaskGroup() as tasks,
        ):
            tasks.create_task(self._commit(requests))
            try:
                while True:
                    for item in await requests.batch():
                        await self._take(item, tasks)
                    await asyncio.sleep(0)  # batches may come without a pause
            finally:
                with contextlib.suppress(TimeoutError):
                    last = self._commit_once(requests, self._done())
                    await asyncio.wait_for(last, _LAST_COMMIT_S)
                self._stand_down()

    async def _take(self, item: Item, tasks: asyncio.TaskGroup) -> None:
        if item.partition != self._partition:
            if isinstance(item, ReceivedMessage):
                self._others[item.partition] = item.offset + 1
            elif isinstance(item, Revoked):
                self._others.pop(item.partition, None)
            return
        match item:
            case Assigned():
                await self._take_over(item)
            case Revoked():
                self._stand_down()
            case ReceivedMessage() if self._backlog is not None:
                self._backlog.append(item)
                self._read_to = item.offset
                self._begin(tasks)
            case ReceivedMessage() if self.active is not None:
                self.active.take(item)
            case CaughtUp() if self._backlog is not None:
                self._caught_up_at = self._clock.now()
                self._begin(tasks)

    def _begin(self, tasks: asyncio.TaskGroup) -> None:
        """Begin to decide, once all messages up to the recalled records have arrived.

        Recalled records may be about messages that came after this member had first caught up.
        """
        if self.active is None or self._backlog is None or self._caught_up_at is None:
            return
        gives_up_at = self._caught_up_at + _MISSING_US  # the topic may have lost its end
        if self._read_to < self.active.recalled_to and self._clock.now() < gives_up_at:
            return
        backlog, self._backlog = self._backlog, None
        self.active.begin(backlog, self._instances)
        self._put_in_force(self.active)
        beside = (self.active.watch(), self._learn(self.active), self._guard(self._epoch))
        self._beside = [tasks.create_task(each) for each in beside]
        logger.info("pool %s: this process decides", self._pool)

    async def _take_over(self, assigned: Assigned) -> None:
        """Announce the takeover, and read back earlier decisions."""
        self._stand_down()
        self._is_superseded, self._announced_at = False, self._clock.now()
        headers = {TAKEOVER_HEADER: self._performer.id, POOL_HEADER: self._pool}
        epoch = self._epoch = await self._producer.send(Topic.EVENTS, self._pool, None, headers)
        balancer, open_calls = self._new_balancer(), OpenCallTable()
        publisher = DecisionPublisher(
            self._pool, epoch, self._producer, self._performer, open_calls
        )
        publisher.fence()
        active = ActiveBalancer(
            balancer,
            self._pool,
            self._performer.id,
            publisher,
            open_calls,
            self._calls,
            self._clock,
            self._observers,
        )
        balancer.replay(Record(0, EntitlementsChanged(self._entitlements)))
        for joined in self._instances.values():
            active.expect(joined)
        await self._read_back(active, *_read_from(assigned.metadata), until=epoch)
        self.balancer, self.active, self._backlog = balancer, active, []
        self._read_to, self._caught_up_at = assigned.offset - 1, None

    async def _read_back(
        self, active: ActiveBalancer, since: int | None, epoch: int | None, *, until: int
    ) -> None:
        recall = Recall(active, self._pool, until, epoch)
        # The announcement must be found even if the other host's clock was far ahead of this one's.
        start: Start = "beginning" if since is None else min(since, self._clock.now() - _MARGIN_US)
        while True:
            async with Subscription(self._cluster, [Topic.EVENTS], start=start) as events:
                if await read_to_the_announcement(events, recall, until):
                    return
            logger.warning("the clocks of this host and of Kafka disagree by more than a minute")
            start = "beginning"

    async def _guard(self, epoch: int) -> None:
        """Watch for a later announcement, such as one of a member whose message was delayed.

        Raises:
            _Superseded: Another process announced itself later.
        """
        start = self._announced_at - _MARGIN_US
        async with Subscription(self._cluster, [Topic.EVENTS], start=start) as events:
            while True:
                for item in await events.batch():
                    if not isinstance(item, ReceivedMessage) or item.offset <= epoch:
                        continue
                    if (
                        TAKEOVER_HEADER in item.headers
                        and item.headers.get(POOL_HEADER) == self._pool
                    ):
                        self._is_superseded = True
                        raise _Superseded("another process announced itself later")

    async def _learn(self, active: ActiveBalancer) -> None:
        async for learnt in follow(self._cluster):
            active.feed(learnt)

    def _stand_down(self) -> None:
        for task in self._beside:
            task.cancel()
        self._beside = []
        if self.active is not None:
            logger.info("pool %s: this process has stopped deciding", self._pool)
            ledger = self.balancer.ledger
            self.active.leave()
            self._calls.abandon(lambda request_id: request_id in ledger)
            self.active, self.balancer = None, self._new_balancer()
        self._backlog = None
        self._was_done = {}

    async def _commit(self, requests: Subscription) -> None:
        """Commit what was done one interval ago; void decisions would have been detected since."""
        while True:
            await asyncio.sleep(_COMMIT_S)
            if self.active is not None and self.active.is_broken:
                raise Unavailable("a decision could not be recorded")
            await self._commit_once(requests, self._was_done)
            self._was_done = self._done()

    def _done(self) -> dict[Where, tuple[int, str]]:
        if self._is_superseded or self.active is None or (done := self.active.done) is None:
            return {}
        offset, since = done
        return {
            (Topic.REQUESTS, self._partition): (offset, f"{_SINCE}={since},{_EPOCH}={self._epoch}")
        }

    async def _commit_once(
        self, requests: Subscription, done: dict[Where, tuple[int, str]]
    ) -> None:
        others: dict[Where, tuple[int, str]] = {
            (Topic.REQUESTS, each): (offset, "") for each, offset in self._others.items()
        }
        offsets = others | done
        if not offsets:
            return
        try:
            await requests.commit(offsets)
        except Unavailable as error:
            logger.info("%s", error)  # another member's by now, or the bus is away: tried again


def _read_from(metadata: str) -> tuple[int | None, int | None]:
    """Return the time to read from, and the epoch, as the last active balancer committed them.

    None: it committed none.
    """
    found = re.fullmatch(rf"{_SINCE}=(\d{{1,18}})(?:,{_EPOCH}=(\d{{1,18}}))?", metadata, re.ASCII)
    if found is None:
        return None, None
    return int(found[1]), None if found[2] is None else int(found[2])


class Recall:
    """Replay of earlier decisions: `read` each message up to the takeover at offset `until`.

    Decisions of a balancer that had been superseded were never acted on, and are skipped.
    """

    def __init__(
        self, active: ActiveBalancer, pool: str, until: int, epoch: int | None = None
    ) -> None:
        """`epoch`: in force before the first message; None: not known."""
        self._active = active
        self._pool = pool
        self._until = until
        self._epoch = epoch
        self._epochs: Epochs | None = None

    def read(self, message: ReceivedMessage) -> bool:
        """Read a message. Return whether there may be more."""
        if message.offset >= self._until:
            return False
        epochs = self._epochs
        if epochs is None:
            epochs = self._epochs = Epochs(message.offset, self._epoch)
        headers = message.headers
        if headers.get(POOL_HEADER) != self._pool:
            return True
        if TAKEOVER_HEADER in headers:
            epochs.announce(message.offset)
            return True
        try:
            epoch, decision = read_record(message)
            if epochs.count(epoch):
                self._active.recall(decision)
            elif epochs.is_forged(epoch):
                leave_out(message, f"no balancer announced itself at {epoch}")
        except Exception as error:  # noqa: BLE001 - a faulty record must not end the process
            leave_out(message, error)
        return True


async def read_to_the_announcement(events: Subscription, recall: Recall, at: int) -> bool:
    """Read up to the announcement. Return False if reading began after it."""
    is_first = True
    while True:
        for item in await events.batch():
            if is_first and not (isinstance(item, ReceivedMessage) and item.offset <= at):
                return False
            is_first = False
            if isinstance(item, ReceivedMessage) and not recall.read(item):
                return True
        await asyncio.sleep(0)  # batches may come without a pause
