"""Performance of calls in one process, while another one decides on them."""

import asyncio
import logging
import os
import re
import secrets
import socket
from collections import deque
from collections.abc import Iterable
from functools import partial
from typing import Self

import msgspec

from kairos.cluster.kafka.cluster import KafkaCluster
from kairos.cluster.kafka.producer import Producer
from kairos.cluster.kafka.subscription import CaughtUp, ReceivedMessage, Subscription
from kairos.cluster.kafka.topic_setup import partition_of
from kairos.cluster.pool.epoch_fence import EpochFence
from kairos.cluster.pool.messages import (
    ALIVE,
    PERFORMER,
    TOLD,
    TOLD_BYTES,
    TOLD_CALLS,
    TYPE_HEADER,
    Alive,
    Declined,
    Orders,
    Told,
    read_orders,
)
from kairos.cluster.pool.orders import obey
from kairos.core import (
    Arrived,
    Bounced,
    Cancelled,
    Clock,
    Dispatch,
    Event,
    Failed,
    Finished,
    InvalidRequest,
    KairosError,
    PlanDeclared,
    Progressed,
    Refuse,
    Topic,
    Unavailable,
    WorkflowEnded,
)
from kairos.observe import UNREADABLE, leave_out
from kairos.proxy import CallsInFlight

logger = logging.getLogger(__name__)

BEAT_S = 1.0
_PATIENCE_S = 30.0  # beyond the longest wait, for a balancer that is to take over
# Ends of workflows that are kept while the bus is unreachable. Facts about calls are bounded by
# arrivals, which are refused then; a client may report a workflow's end at any time. A workflow
# whose end is dropped ends when it has been idle (`workflow_idle_s`): until then it counts as open
# in the order of calls, and towards its tenant's limit of concurrent workflows.
_MOST_ENDS = 10_000

_encode = msgspec.json.Encoder().encode


class Performer:
    """Counterpart of the runtime in a process that performs calls.

    It sends facts about calls to the pool's active balancer, in whichever process, and passes that
    one's orders on to the calls. An async context manager; once it is entered no order is missed.
    """

    def __init__(
        self,
        cluster: KafkaCluster,
        pool: str,
        producer: Producer,
        calls: CallsInFlight,
        clock: Clock,
        *,
        max_wait_s: float,
    ) -> None:
        self.id = _name()
        self._orders = Subscription(cluster, [Topic.DISPATCHES], start="end")
        self._pool = pool
        self._producer = producer
        self._calls = calls
        self._clock = clock
        self._max_wait_us = int((max_wait_s + _PATIENCE_S) * 1e6)
        self._asked_at: dict[str, int] = {}  # calls without an order, in order of arrival
        # What the bus did not take yet, and whether it is a workflow's end.
        self._untold: deque[tuple[bytes, bool]] = deque()
        self._untold_ends = 0
        self._fence = EpochFence(cluster, pool, self._obey)

    async def __aenter__(self) -> Self:
        partition = partition_of(self._pool, await self._producer.partitions(Topic.DISPATCHES))
        await self._orders.__aenter__()
        # Where the topic ends is known once it was reached; from then on no order can be missed.
        while CaughtUp(Topic.DISPATCHES, partition) not in await self._orders.batch():
            pass
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
        if isinstance(event, Bounced):
            self._asked_at[event.request_id] = self.now()
        fact = _encode(Told(self.id, event, self._turn(event)))
        if isinstance(event, Arrived):
            if len(fact) > TOLD_BYTES:
                raise InvalidRequest(f"the call's metadata exceeds {TOLD_BYTES} bytes")
            told = self._tell(fact)
            self._asked_at[event.request.id] = self.now()
            told.add_done_callback(partial(self._after_asking, event.request.id))
            return
        if isinstance(event, Finished | Failed | Cancelled):
            self._asked_at.pop(event.request_id, None)
        is_kept = self._keep(fact, is_end=isinstance(event, WorkflowEnded))
        if not is_kept and isinstance(event, WorkflowEnded) and event.cancelled:
            raise Unavailable("the bus is unreachable, and too many ends of workflows are waiting")
        self._tell_rest()

    def take(self, orders: Iterable[tuple[Dispatch | Refuse | Declined, int]]) -> None:
        """Execute orders for calls on the given turns; ignore outdated or repeated ones."""
        for command, turn in orders:
            if obey(self._calls, command, turn):
                self._asked_at.pop(command.request_id, None)

    async def run(self) -> None:
        """Read orders, and send a sign of life once a second, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._beat())
            tasks.create_task(self._watch())
            tasks.create_task(self._fence.run())
            while True:
                for item in await self._orders.batch():
                    if isinstance(item, ReceivedMessage):
                        self._read(item)

    async def _beat(self) -> None:
        while True:
            try:
                alive = _encode(Alive(self.id))
                await self._producer.send(Topic.REQUESTS, self._pool, alive, {TYPE_HEADER: ALIVE})
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
            self._give_up()

    def _turn(self, event: Event) -> int:
        match event:
            case Arrived():
                return self._calls.turn(event.request.id)
            case Bounced():
                return self._calls.turn(event.request_id)
        return 0

    def _tell_progress(self, progressed: Progressed) -> None:
        counts = list(progressed.completion_tokens.items())
        for start in range(0, len(counts), TOLD_CALLS):
            part = Progressed(dict(counts[start : start + TOLD_CALLS]))
            try:
                told = self._tell(_encode(Told(self.id, part)))
            except Unavailable:
                return
            told.add_done_callback(_say_if_lost)

    def _tell_plan(self, declared: PlanDeclared) -> None:
        fact = _encode(Told(self.id, declared))
        if len(fact) > TOLD_BYTES:
            raise InvalidRequest(f"the plan has more than {TOLD_BYTES} bytes")
        self._tell(fact).add_done_callback(_say_if_lost)

    def _tell(self, fact: bytes) -> asyncio.Future[int]:
        return self._producer.send(Topic.REQUESTS, self._pool, fact, {TYPE_HEADER: TOLD})

    def _keep(self, fact: bytes, *, is_end: bool) -> bool:
        """Keep a fact until the bus takes it. Return whether there is room."""
        if is_end and self._untold_ends >= _MOST_ENDS:
            return False
        self._untold_ends += is_end
        self._untold.append((fact, is_end))
        return True

    def _tell_rest(self) -> None:
        for _ in range(len(self._untold)):
            fact, is_end = self._untold[0]
            try:
                told = self._tell(fact)
            except Unavailable:
                return
            self._untold.popleft()
            self._untold_ends -= is_end
            told.add_done_callback(partial(self._after_telling, fact, is_end=is_end))

    def _after_telling(self, fact: bytes, told: asyncio.Future[int], *, is_end: bool) -> None:
        if not told.cancelled() and (error := told.exception()) is not None:
            logger.warning("%s", error)
            self._keep(fact, is_end=is_end)

    def _give_up(self) -> None:
        """Refuse calls without a decision for longer than the maximum wait."""
        for request_id, asked_at in list(self._asked_at.items()):
            if asked_at + self._max_wait_us > self.now():
                return
            self.take([(Refuse(request_id, None, "waited_too_long"), 0)])

    def _read(self, item: ReceivedMessage) -> None:
        if item.key != self._pool:
            return
        try:
            epoch, orders = read_orders(item)
        except UNREADABLE as error:
            leave_out(item, error)
            return
        self._fence.take(epoch, item, orders)

    def _obey(self, item: ReceivedMessage, orders: Orders) -> None:
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
