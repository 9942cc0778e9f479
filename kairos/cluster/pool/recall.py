"""Recall of a pool's earlier decisions from `kairos.events`."""

import asyncio

from kairos.cluster.kafka.subscription import ReceivedMessage, Subscription
from kairos.cluster.pool.active import ActiveBalancer
from kairos.cluster.pool.messages import POOL_HEADER, TAKEOVER_HEADER, Epochs, read_record
from kairos.observe import leave_out


class Recall:
    """Replay of earlier decisions: `read` each message up to the takeover at offset `until`.

    Decisions of a balancer that had been superseded were never acted on, and are skipped.
    """

    def __init__(
        self, active: ActiveBalancer, pool: str, until: int, epoch: int | None = None
    ) -> None:
        """Start before any message has been read.

        Args:
            active: The balancer that replays the records.
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
            decided = read_record(message)
            if epochs.count(decided.epoch):
                self._active.recall(decided)
            elif epochs.is_forged(decided.epoch):
                leave_out(message, f"no balancer announced itself at {decided.epoch}")
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
