"""Which messages of `kairos.events` are records that count."""

import logging

import msgspec

from kairos.events import Record
from kairos.live.bus.left_out import count_left_out
from kairos.live.kafka.items import ReceivedMessage
from kairos.live.pool.messages import EPOCH, POOL, TAKEOVER
from kairos.model import SECOND
from kairos.topics import EVENTS

logger = logging.getLogger(__name__)

_MAX_POOLS = 1_000
_AHEAD_US = 3_600 * SECOND  # by which clocks may disagree
_decode = msgspec.json.Decoder(Record).decode


class Records:
    """Told the messages in their order, it leaves out what a balancer said after another had taken
    over its pool. The offset of a takeover's announcement is the epoch of all that it says."""

    def __init__(self, epochs: dict[str, int]) -> None:
        """`epochs`: of each pool, in force at the first message that will be told."""
        self._announced = {pool: [epoch] for pool, epoch in epochs.items()}  # ascending

    def read(self, message: ReceivedMessage) -> Record | None:
        """Untrusted: what makes no sense is left out, with a warning."""
        pool = message.headers.get(POOL, "")
        if pool not in self._announced and len(self._announced) >= _MAX_POOLS:
            _warn(message, "there are too many pools")
            return None
        if TAKEOVER in message.headers:
            self._announced.setdefault(pool, []).append(message.offset)
            return None
        try:
            epoch = int(message.headers[EPOCH])
            record = _decode(message.value or b"")
        except (KeyError, ValueError, msgspec.MsgspecError, RecursionError) as error:
            _warn(message, f"{type(error).__name__}: {error}")
            return None
        if record.at > message.at + _AHEAD_US:
            _warn(message, "it is of the future")
            return None
        announced = self._announced.setdefault(pool, [])
        newest = announced[-1] if announced else -1
        if not newest <= epoch < message.offset:
            logger.info("%s:%d is of a balancer that had been replaced", EVENTS, message.offset)
            return None
        if epoch > newest:
            announced.append(epoch)  # the announcement came before the first message here
        return record

    def epochs(self, offset: int) -> dict[str, int]:
        """Those in force there. No earlier offset will be asked for."""
        in_force: dict[str, int] = {}
        for pool, announced in self._announced.items():
            before = [epoch for epoch in announced if epoch < offset]
            if before:
                in_force[pool] = before[-1]
                del announced[: len(before) - 1]
        return in_force


def _warn(message: ReceivedMessage, why: str) -> None:
    logger.warning("%s:%d is no record: %s", EVENTS, message.offset, why[:200])
    count_left_out(EVENTS)
