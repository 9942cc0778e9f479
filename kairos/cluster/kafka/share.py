"""A partition owned by this member, and which of its messages may be handled now."""

import logging
from collections import deque
from collections.abc import Iterator

from kairos.cluster.kafka.custody import Custody, read_custody
from kairos.cluster.kafka.items import Assigned, Passed, ReceivedMessage
from kairos.cluster.kafka.watermark import MARK, Watermark
from kairos.core import InvalidRequest

logger = logging.getLogger(__name__)

_EACH_BYTES = 1_024  # that a message takes besides its value
_TEXT_LIMIT = 4_090  # characters; brokers keep 4,096


class Share:
    """A partition's messages, of each key the first, then the next once it is done.

    Messages beyond what the watermark can represent wait; `is_full` is true as long.
    """

    def __init__(self, assigned: Assigned) -> None:
        self.topic, self.partition = assigned.topic, assigned.partition
        self.watermark, self.custody = restored(assigned.offset, assigned.metadata)
        self.committed = max(assigned.offset, 0), assigned.metadata
        self.is_open = False  # nothing may be handled before the holder is committed
        self._is_claimed = False
        self._suspects: list[int] = []  # not received yet, in descending order
        self.is_lost = False  # another member's by now
        self.held_bytes = 0
        self._later: deque[ReceivedMessage | Passed] = deque()
        self._queues: dict[str, deque[ReceivedMessage]] = {}

    @property
    def is_full(self) -> bool:
        return self.is_open and bool(self._later)

    def claim(self, holder: str) -> None:
        """Claim the partition for a holder.

        If the mark is found after that member left, it has died.
        """
        self.custody.passed_on()
        self.custody.holder = holder
        self._is_claimed = True
        self._suspects = sorted(self.custody.suspects, reverse=True)

    def leave(self) -> None:
        """Release the partition on a clean shutdown."""
        if self._is_claimed:
            self.custody.passed_on()

    def state(self) -> tuple[int, str]:
        """Return the offset and the metadata to commit."""
        return _committed(self.watermark, self.custody)

    def add(self, item: ReceivedMessage | Passed) -> None:
        self._later.append(item)
        if isinstance(item, ReceivedMessage):
            self.held_bytes += _weight(item)

    def begin(self) -> Iterator[ReceivedMessage]:
        """Yield the messages that may be handled from now on. Exhaust the iterator."""
        while self.is_open and self._later and not self.watermark.is_full:
            item = self._later.popleft()
            self._miss_suspects(item.offset)
            if isinstance(item, Passed):
                self.watermark.skip_to(item.offset)
                continue
            if self._suspects and self._suspects[-1] == item.offset:
                self._suspects.pop()
            if self.watermark.come(item.offset):
                queue = self._queues.setdefault(item.key, deque())
                queue.append(item)
                if len(queue) == 1:
                    yield item
            else:
                self.held_bytes -= _weight(item)  # another member has done it
                self.custody.done(item.offset)

    def next_of(self, key: str) -> ReceivedMessage | None:
        """Return the message that follows the handled one of the same key, or None."""
        queue = self._queues[key]
        queue.popleft()
        if queue:
            return queue[0]
        del self._queues[key]
        return None

    def finish(self, received: ReceivedMessage) -> None:
        """Mark a message as handled; what its handler returned is sent with the next commit."""
        self.watermark.finish(received.offset)
        if self.custody.deaths:
            self.custody.done(received.offset)
        self.held_bytes -= _weight(received)

    def _miss_suspects(self, offset: int) -> None:
        """Mark suspects before this offset as done: they no longer exist in the partition."""
        while self._suspects and self._suspects[-1] < offset:
            self.custody.done(self._suspects.pop())


def restored(offset: int, metadata: str) -> tuple[Watermark, Custody]:
    """Restore what was committed. Metadata that Kairos cannot read is ignored, with a warning."""
    offset = max(offset, 0)
    try:
        return _read(offset, metadata)
    except InvalidRequest as error:
        logger.warning("%s; messages from offset %d on are handled again", error, offset)
        return Watermark(offset), Custody()


def pass_record(offset: int, metadata: str, record: int) -> tuple[int, str, int]:
    """Return what a stopped group commits to continue after a record, at the offset `record`.

    It has committed an offset that is at most that, and metadata with it. Return the offset and
    metadata to commit, and how many records before it are left undone.
    """
    try:
        watermark, custody = _read(offset, metadata)
    except InvalidRequest:  # a balancer's: its numbers do not count from the offset
        return record + 1, metadata, record - offset
    left = watermark.count_undone(record)
    watermark.skip_to(record + 1)
    for each in sorted(custody.suspects | custody.begun):
        if each <= record:
            custody.done(each)
    if custody.convicted is not None and custody.convicted <= record:
        custody.done(custody.convicted)
    return *_committed(watermark, custody), left


def _read(offset: int, metadata: str) -> tuple[Watermark, Custody]:
    undone, _, rest = metadata.partition(" ")
    if not undone.startswith(MARK):
        undone, rest = "", metadata
    return Watermark(offset, undone), read_custody(offset, rest)


def _committed(watermark: Watermark, custody: Custody) -> tuple[int, str]:
    position, undone = watermark.state()
    custody.done_below(position)
    text = f"{undone} {custody.text(position)}".strip()
    assert len(text) <= _TEXT_LIMIT, f"{len(text)} characters"
    return position, text


def _weight(received: ReceivedMessage) -> int:
    return _EACH_BYTES + len(received.value or b"")
