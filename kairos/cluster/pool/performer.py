"""Performance of calls in one process, while another one decides on them.

Or several others: each for its pool. Of the balancers of a pool only the current one is obeyed.
"""

import asyncio
import logging
import os
import re
import secrets
import socket
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import Self

import msgspec

from kairos.cluster.decisions.messages import Declined, Order
from kairos.cluster.decisions.orders import AwaitedOrders
from kairos.cluster.decisions.reports import BEAT_S
from kairos.cluster.kafka.cluster import KafkaCluster
from kairos.cluster.kafka.items import CaughtUp, ReceivedMessage
from kairos.cluster.kafka.producer import Producer
from kairos.cluster.kafka.subscription import Subscription
from kairos.cluster.kafka.tail import NotKept, read_at
from kairos.cluster.kafka.topic_setup import partition_of
from kairos.cluster.pool.cells import Cells
from kairos.cluster.pool.messages import (
    ALIVE,
    PERFORMER,
    POOL_HEADER,
    TAKEOVER_HEADER,
    TOLD,
    TOLD_BYTES,
    TOLD_CALLS,
    TYPE_HEADER,
    Alive,
    Orders,
    Told,
    read_orders,
)
from kairos.core import (
    Arrived,
    Bounced,
    Cancelled,
    Clock,
    Event,
    Failed,
    Finished,
    InvalidRequest,
    KairosError,
    PlanDeclared,
    Progressed,
    Topic,
    Unavailable,
    WorkflowEnded,
)
from kairos.observe import UNREADABLE, leave_out
from kairos.proxy import CallsInFlight

logger = logging.getLogger(__name__)

# Ends of workflows that are kept while the bus is unreachable. Facts about calls are bounded by
# arrivals, which are refused then; a client may report a workflow's end at any time. A workflow
# whose end is dropped ends when it has been idle (`workflow_idle_s`): until then it counts as open
# in the order of calls, and towards its tenant's limit of concurrent workflows.
_MOST_ENDS = 10_000

_HELD = 10_000  # messages, while it is not known whether their epoch is one
_AGAIN_S = 1.0

_Held = tuple[ReceivedMessage, Orders]
_encode = msgspec.json.Encoder().encode


class EpochFence:
    """Fence that passes on orders of the balancer that announced itself last.

    An epoch is the offset of an announcement in `kairos.events`. A new one is looked up there
    first: a forged high number would otherwise lock out all later balancers. Orders of the current
    epoch pass at once; orders of a new one wait, in sequence, until it has been found.
    """

    def __init__(
        self, cluster: KafkaCluster, pool: str, obey: Callable[[ReceivedMessage, Orders], None]
    ) -> None:
        self._cluster = cluster
        self._pool = pool
        self._obey = obey
        self._epoch = -1  # the newest that was found; -1: none
        self._not_kept = -1  # an epoch whose announcement is too old: the topic has deleted it
        self._held: dict[int, deque[_Held]] = {}  # by epoch
        self._messages = 0  # that are held
        self._is_asked = asyncio.Event()

    def take(self, epoch: int, message: ReceivedMessage, orders: Orders) -> None:
        """Pass orders on now, hold them, or drop them."""
        if epoch == self._epoch or (self._epoch < 0 and epoch == self._not_kept):
            self._obey(message, orders)
        elif epoch > self._epoch:
            if self._messages >= _HELD:
                leave_out(message, "too many orders wait for their epoch to be found")
                return
            self._held.setdefault(epoch, deque()).append((message, orders))
            self._messages += 1
            self._is_asked.set()
        # else it is from a superseded balancer that does not know it yet

    async def run(self) -> None:
        """Look up new epochs, until cancelled."""
        while True:
            while self._held:
                await self._look_up(next(iter(self._held)))
            self._is_asked.clear()
            await self._is_asked.wait()

    async def _look_up(self, epoch: int) -> None:
        counts = epoch > self._epoch and await self._is_announced(epoch)
        held = self._held.pop(epoch)
        self._messages -= len(held)
        for message, orders in held:
            if counts:
                self._obey(message, orders)
            elif epoch > self._epoch:
                leave_out(message, f"no balancer announced itself at {epoch}")

    async def _is_announced(self, epoch: int) -> bool:
        while True:
            try:
                found = await read_at(self._cluster, Topic.EVENTS, epoch)
            except NotKept:
                if self._epoch >= 0:
                    return False  # any newer announcement would still be on the topic
                self._not_kept = epoch
                return True
            except Unavailable as error:
                logger.warning("%s", error)
                await asyncio.sleep(_AGAIN_S)
                continue
            if found is None or TAKEOVER_HEADER not in found.headers:
                return False
            if found.headers.get(POOL_HEADER) != self._pool:
                return False
            self._epoch = epoch
            return True


class Performer:
    """Counterpart of the runtime in a process that performs calls.

    It sends facts about calls to their pool's active balancer, in whichever process, and passes
    that one's orders on to the calls. An async context manager; once it is entered no order is
    missed.
    """

    def __init__(
        self,
        cluster: KafkaCluster,
        cells: Cells,
        producer: Producer,
        calls: CallsInFlight,
        clock: Clock,
        *,
        max_wait_s: float,
    ) -> None:
        self.id = _name()
        self._orders = Subscription(cluster, [Topic.DISPATCHES], start="end")
        self._cells = cells
        self._pool_of: dict[str, str] = {}  # calls that have not ended, where there are several
        self._producer = producer
        self._calls = calls
        self._clock = clock
        self._awaited = AwaitedOrders(calls, clock, max_wait_s=max_wait_s)
        # What the bus did not take yet: fact, pool, and whether it is a workflow's end.
        self._untold: deque[tuple[bytes, str, bool]] = deque()
        self._untold_ends = 0
        self._fences = {
            pool: EpochFence(cluster, pool, partial(self._obey, pool)) for pool in cells.pools
        }

    async def __aenter__(self) -> Self:
        partitions = await self._producer.partitions(Topic.DISPATCHES)
        awaited = {
            CaughtUp(Topic.DISPATCHES, partition_of(each, partitions)) for each in self._fences
        }
        await self._orders.__aenter__()
        # Where the topic ends is known once it was reached; from then on no order can be missed.
        while awaited:
            awaited.difference_update(
                each for each in await self._orders.batch() if isinstance(each, CaughtUp)
            )
        return self

    async def __aexit__(self, *raised: object) -> None:
        await self._orders.__aexit__(*raised)

    def now(self) -> int:
        return self._clock.now()

    def feed(self, event: Event) -> None:
        """Send a fact about a call of this process.

        The end of a call is sent again until the bus has it; otherwise its booking would never be
        released. Progress is sent once, since the next second's is newer, and so is a declared
        plan, which the caller can declare again.

        Raises:
            InvalidRequest: The metadata of the arriving call, or the plan, is too long.
            Unavailable: An arrival, a plan or a cancellation cannot be sent: the send buffer is
                full.
        """
        if isinstance(event, Progressed):
            self._tell_progress(event)
            return
        if isinstance(event, PlanDeclared):
            self._tell_plan(event)
            return
        if isinstance(event, Arrived):
            self._tell_arrival(event)
            return
        turn = self._awaited.ask(event.request_id) if isinstance(event, Bounced) else 0
        fact = _encode(Told(self.id, event, turn))
        if isinstance(event, WorkflowEnded):
            pools = self._cells.pools_of(event.tenant, event.workflow_id)
            kept = [self._keep(fact, pool, is_end=True) for pool in pools]
            if event.cancelled and not all(kept):
                raise Unavailable("the bus is unreachable, and too many workflows' ends wait")
        else:
            self._keep(fact, self._of_call(event), is_end=False)
        self._tell_rest()

    def _tell_arrival(self, event: Arrived) -> None:
        request = event.request
        fact = _encode(Told(self.id, event, self._calls.turn(request.id)))
        if len(fact) > TOLD_BYTES:
            raise InvalidRequest(f"the call's metadata exceeds {TOLD_BYTES} bytes")
        pool = self._cells.choose(request)
        told = self._tell(fact, pool)
        if len(self._fences) > 1:
            self._pool_of[request.id] = pool
        self._awaited.ask(request.id)
        told.add_done_callback(partial(self._after_asking, request.id))

    def _of_call(self, event: Event) -> str:
        """Return the pool that the call of the fact is in; forget a call that has ended."""
        request_id = getattr(event, "request_id", "")
        pool = self._pool_of.get(request_id, self._cells.pools[0])
        if isinstance(event, Finished | Failed | Cancelled):
            self._awaited.forget(request_id)
            self._pool_of.pop(request_id, None)
        return pool

    def take(self, orders: Iterable[Order]) -> None:
        """Execute orders for calls on the given turns; ignore outdated or repeated ones."""
        self._awaited.obey(orders)

    async def run(self) -> None:
        """Read orders, and send a sign of life once a second, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._beat())
            tasks.create_task(self._watch())
            for fence in self._fences.values():
                tasks.create_task(fence.run())
            while True:
                for item in await self._orders.batch():
                    if isinstance(item, ReceivedMessage):
                        self._read(item)

    async def _beat(self) -> None:
        while True:
            try:
                alive = _encode(Alive(self.id))
                sent = [
                    self._producer.send(Topic.REQUESTS, pool, alive, {TYPE_HEADER: ALIVE})
                    for pool in self._fences
                ]
                await asyncio.gather(*sent)
            except KairosError as error:
                logger.warning("%s", error)
            await asyncio.sleep(BEAT_S)

    async def _watch(self) -> None:
        """Resend facts and expire calls.

        Separate from the beat, which blocks while the bus is unreachable.
        """
        while True:
            await asyncio.sleep(BEAT_S)
            self._tell_rest()
            self._awaited.give_up()

    def _tell_progress(self, progressed: Progressed) -> None:
        by_pool: dict[str, list[tuple[str, int]]] = {}
        for each, tokens in progressed.completion_tokens.items():
            pool = self._pool_of.get(each, self._cells.pools[0])
            by_pool.setdefault(pool, []).append((each, tokens))
        for pool, counts in by_pool.items():
            for start in range(0, len(counts), TOLD_CALLS):
                part = Progressed(dict(counts[start : start + TOLD_CALLS]))
                try:
                    told = self._tell(_encode(Told(self.id, part)), pool)
                except Unavailable:
                    return
                told.add_done_callback(_say_if_lost)

    def _tell_plan(self, declared: PlanDeclared) -> None:
        fact = _encode(Told(self.id, declared))
        if len(fact) > TOLD_BYTES:
            raise InvalidRequest(f"the plan has more than {TOLD_BYTES} bytes")
        for pool in self._fences:
            self._tell(fact, pool).add_done_callback(_say_if_lost)

    def _tell(self, fact: bytes, pool: str) -> asyncio.Future[int]:
        return self._producer.send(Topic.REQUESTS, pool, fact, {TYPE_HEADER: TOLD})

    def _keep(self, fact: bytes, pool: str, *, is_end: bool) -> bool:
        """Keep a fact until the bus takes it. Return whether there is room."""
        if is_end and self._untold_ends >= _MOST_ENDS:
            return False
        self._untold_ends += is_end
        self._untold.append((fact, pool, is_end))
        return True

    def _tell_rest(self) -> None:
        for _ in range(len(self._untold)):
            fact, pool, is_end = self._untold[0]
            try:
                told = self._tell(fact, pool)
            except Unavailable:
                return
            self._untold.popleft()
            self._untold_ends -= is_end
            told.add_done_callback(partial(self._after_telling, fact, pool, is_end=is_end))

    def _after_telling(
        self, fact: bytes, pool: str, told: asyncio.Future[int], *, is_end: bool
    ) -> None:
        if not told.cancelled() and (error := told.exception()) is not None:
            logger.warning("%s", error)
            self._keep(fact, pool, is_end=is_end)

    def _read(self, item: ReceivedMessage) -> None:
        fence = self._fences.get(item.key)
        if fence is None:
            return
        try:
            epoch, orders = read_orders(item)
        except UNREADABLE as error:
            leave_out(item, error)
            return
        fence.take(epoch, item, orders)

    def _obey(self, pool: str, item: ReceivedMessage, orders: Orders) -> None:
        self._cells.hear_balancer(pool)
        if item.headers.get(PERFORMER) == self.id:
            try:
                self.take(zip(orders.commands, orders.turns, strict=True))
            except Exception as error:  # noqa: BLE001 - faulty orders must not end the process
                leave_out(item, error)

    def _after_asking(self, request_id: str, told: asyncio.Future[int]) -> None:
        if not told.cancelled() and (error := told.exception()) is not None:
            self.take([(Declined.of(request_id, Unavailable(str(error))), 0)])


def _say_if_lost(told: asyncio.Future[int]) -> None:
    if not told.cancelled() and (error := told.exception()) is not None:
        logger.warning("%s", error)


def _name() -> str:
    """Return a name for this process that is unique across hosts and restarts."""
    host = re.sub(r"[^A-Za-z0-9-]", "-", socket.gethostname())[:60] or "host"
    return f"p-{host}-{os.getpid()}-{secrets.token_hex(4)}"
