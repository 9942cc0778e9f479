"""Fence against superseded balancers: performers obey the current one only."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable

from kairos.cluster.kafka.cluster import KafkaCluster
from kairos.cluster.kafka.items import ReceivedMessage
from kairos.cluster.kafka.tail import NotKept, read_at
from kairos.cluster.pool.messages import POOL_HEADER, TAKEOVER_HEADER, Orders
from kairos.core import Topic, Unavailable
from kairos.observe import leave_out

logger = logging.getLogger(__name__)

_HELD = 10_000  # messages, while it is not known whether their epoch is one
_AGAIN_S = 1.0

_Held = tuple[ReceivedMessage, Orders]


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
