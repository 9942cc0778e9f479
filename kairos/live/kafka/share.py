"""A partition in the hands of a member: which of its messages may be handled now."""

import logging
from collections import deque
from collections.abc import Iterator

from kairos.errors import InvalidRequest
from kairos.live.kafka.items import Assigned, Passed, ReceivedMessage
from kairos.live.kafka.watermark import Watermark

logger = logging.getLogger(__name__)

_EACH_BYTES = 1_024  # that a message takes besides its value


class Share:
    """Hands out the first message of each key, and the next once that was handled.

    What is more than the watermark can tell apart waits; `is_full` until then.
    """

    def __init__(self, assigned: Assigned) -> None:
        self.watermark = restored(assigned.offset, assigned.metadata)
        self.committed = self.watermark.state()
        self.is_lost = False  # another member's by now
        self.held_bytes = 0
        self._later: deque[ReceivedMessage | Passed] = deque()
        self._queues: dict[str, deque[ReceivedMessage]] = {}

    @property
    def is_full(self) -> bool:
        return bool(self._later)

    def add(self, item: ReceivedMessage | Passed) -> None:
        """Take what comes of the partition."""
        self._later.append(item)
        if isinstance(item, ReceivedMessage):
            self.held_bytes += _weight(item)

    def begin(self) -> Iterator[ReceivedMessage]:
        """What may be handled now and could not before. To be run through to its end."""
        while self._later and not self.watermark.is_full:
            item = self._later.popleft()
            if isinstance(item, Passed):
                self.watermark.skip_to(item.offset)
            elif self.watermark.come(item.offset):
                queue = self._queues.setdefault(item.key, deque())
                queue.append(item)
                if len(queue) == 1:
                    yield item
            else:
                self.held_bytes -= _weight(item)  # another member has done it

    def next_of(self, key: str) -> ReceivedMessage | None:
        """The message of the key that was in hand has been handled: the one after it."""
        queue = self._queues[key]
        queue.popleft()
        if queue:
            return queue[0]
        del self._queues[key]
        return None

    def finish(self, received: ReceivedMessage) -> None:
        """Its consequences go out with the next commit of the watermark's state."""
        self.watermark.finish(received.offset)
        self.held_bytes -= _weight(received)


def restored(offset: int, metadata: str) -> Watermark:
    """The watermark that was committed. Metadata that is not ours is left out, with a warning."""
    try:
        return Watermark(max(offset, 0), metadata)
    except InvalidRequest as error:
        logger.warning("%s; what is done beyond offset %d is done again", error, offset)
        return Watermark(max(offset, 0))


def _weight(received: ReceivedMessage) -> int:
    return _EACH_BYTES + len(received.value or b"")
