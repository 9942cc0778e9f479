"""Records of `kairos.events`, except for records of superseded balancers."""

import logging

from kairos.cluster.kafka.items import ReceivedMessage
from kairos.cluster.pool.messages import POOL_HEADER, TAKEOVER_HEADER, Epochs, read_record
from kairos.core import SECOND, Record, Topic
from kairos.observe import UNREADABLE, leave_out

logger = logging.getLogger(__name__)

_MAX_POOLS = 1_000
_NAMES = 256  # characters of a pool's
_AHEAD_US = 3_600 * SECOND  # by which clocks may disagree


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
            decided = read_record(message)
        except UNREADABLE as error:
            leave_out(message, error)
            return None
        record = decided.record
        if record.at > message.at + _AHEAD_US:
            leave_out(message, "its time is in the future")
            return None
        if epochs.is_forged(decided.epoch):
            leave_out(message, f"no balancer announced itself at {decided.epoch}")
            return None
        if not epochs.count(decided.epoch):
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
