"""Reads back from `kairos.events` what was decided for a pool before."""

import asyncio
import logging

import msgspec

from kairos.events import Record
from kairos.live.bus.left_out import count_left_out
from kairos.live.kafka.subscription import ReceivedMessage, Subscription
from kairos.live.pool.active import ActiveBalancer
from kairos.live.pool.messages import CAUSE, EPOCH, POOL, TAKEOVER
from kairos.topics import EVENTS

logger = logging.getLogger(__name__)

_record = msgspec.json.Decoder(Record)


class Recall:
    """`read` each message up to the takeover at offset `until`. What a balancer said that had been
    replaced by then, and did not know it, was done by nobody."""

    def __init__(self, active: ActiveBalancer, pool: str, until: int) -> None:
        self._active = active
        self._pool = pool
        self._until = until
        self._newest = -1  # epoch

    def read(self, message: ReceivedMessage) -> bool:
        """Return whether there may be more."""
        if message.offset >= self._until:
            return False
        headers = message.headers
        if headers.get(POOL) != self._pool:
            return True
        if TAKEOVER in headers:
            self._newest = message.offset
            return True
        try:
            record = _record.decode(message.value or b"")
            epoch, _ = int(headers.get(EPOCH, "")), int(headers.get(CAUSE, "0"))
        except (ValueError, msgspec.MsgspecError, RecursionError) as error:
            logger.warning("a record of %s is left out: %s", EVENTS, error)
            count_left_out(EVENTS)
            return True
        if epoch >= self._newest:
            self._newest = epoch
            self._active.recall(record, headers)
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
