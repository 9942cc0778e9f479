"""Reads back from `kairos.events` what was decided for a pool before."""

import asyncio

from kairos.cluster.kafka.subscription import ReceivedMessage, Subscription
from kairos.cluster.pool.active import ActiveBalancer
from kairos.cluster.pool.messages import POOL, TAKEOVER, Epochs, read_record
from kairos.observe.left_out import leave_out


class Recall:
    """`read` each message up to the takeover at offset `until`. What a balancer said that had been
    replaced by then, and did not know it, was done by nobody."""

    def __init__(
        self, active: ActiveBalancer, pool: str, until: int, epoch: int | None = None
    ) -> None:
        """Begin before any message was read.

        Args:
            active: The balancer that takes records in.
            pool: Its pool.
            until: The offset of its own announcement.
            epoch: The epoch in force before the first message; None: not known.
        """
        self._active = active
        self._pool = pool
        self._until = until
        self._epoch = epoch
        self._epochs: Epochs | None = None

    def read(self, message: ReceivedMessage) -> bool:
        """Return whether there may be more."""
        if message.offset >= self._until:
            return False
        epochs = self._epochs
        if epochs is None:
            epochs = self._epochs = Epochs(message.offset, self._epoch)
        headers = message.headers
        if headers.get(POOL) != self._pool:
            return True
        if TAKEOVER in headers:
            epochs.announce(message.offset)
            return True
        try:
            decided = read_record(message)
            if epochs.count(decided.epoch):
                self._active.recall(decided)
            elif epochs.is_forged(decided.epoch):
                leave_out(message, f"no balancer announced itself at {decided.epoch}")
        except Exception as error:  # noqa: BLE001 - a record ends no process, and is named
            leave_out(message, error)
        return True


async def read_to_the_announcement(events: Subscription, recall: Recall, at: int) -> bool:
    """False: reading began behind it."""
    is_first = True
    while True:
        for item in await events.batch():
            if is_first and not (isinstance(item, ReceivedMessage) and item.offset <= at):
                return False
            is_first = False
            if isinstance(item, ReceivedMessage) and not recall.read(item):
                return True
        await asyncio.sleep(0)  # batches may come without a pause
