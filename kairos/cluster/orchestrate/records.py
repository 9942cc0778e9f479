"""Which messages of `kairos.events` are records that count."""

import logging

from kairos.cluster.kafka.items import ReceivedMessage
from kairos.cluster.pool.messages import POOL, TAKEOVER, Epochs, read_record
from kairos.core.events import Record
from kairos.core.model import SECOND
from kairos.core.topics import EVENTS
from kairos.observe.left_out import UNREADABLE, leave_out

logger = logging.getLogger(__name__)

_MAX_POOLS = 1_000
_NAMES = 256  # characters of a pool's
_AHEAD_US = 3_600 * SECOND  # by which clocks may disagree


class Records:
    """Told the messages in their order, it leaves out what a balancer said after another had taken
    over its pool. The offset of a takeover's announcement is the epoch of all that it says."""

    def __init__(self, epochs: dict[str, int]) -> None:
        """`epochs`: of each pool, in force at the first message that will be told."""
        self._known = epochs
        self._first: int | None = None
        self._epochs: dict[str, Epochs] = {}
        self._proven: set[str] = set()  # pools of which records came
        self._announced = {pool: [epoch] for pool, epoch in epochs.items()}  # ascending

    def read(self, message: ReceivedMessage) -> Record | None:
        """Untrusted: what makes no sense is left out, with a warning."""
        if self._first is None:
            self._first = message.offset
        pool = message.headers.get(POOL, "")
        epochs = self._epochs.get(pool)
        if epochs is None:
            if not self._has_room() or len(pool) > _NAMES:
                leave_out(message, "there are too many pools, or it has too long a name")
                return None
            epochs = Epochs(self._first, self._known.get(pool))
        if TAKEOVER in message.headers:
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
            leave_out(message, "it is of the future")
            return None
        if epochs.is_forged(decided.epoch):
            leave_out(message, f"no balancer announced itself at {decided.epoch}")
            return None
        if not epochs.count(decided.epoch):
            logger.info("%s:%d is of a balancer that had been replaced", EVENTS, message.offset)
            return None
        self._epochs[pool] = epochs
        self._proven.add(pool)
        return record

    def _has_room(self) -> bool:
        """Return whether one more pool can be known; one of which no record came makes room."""
        if len(self._epochs) >= _MAX_POOLS:
            unproven = next((each for each in self._epochs if each not in self._proven), None)
            if unproven is None:
                return False
            del self._epochs[unproven]
            self._announced.pop(unproven, None)
        return True

    def epochs(self, offset: int) -> dict[str, int]:
        """Those in force there. No earlier offset will be asked for."""
        in_force: dict[str, int] = {}
        for pool, announced in self._announced.items():
            before = [epoch for epoch in announced if epoch < offset]
            if before:
                in_force[pool] = before[-1]
                del announced[: len(before) - 1]
        return in_force
