"""Which messages of a partition are done, though they end in any order.

What is committed is the offset below which all is done and, as text beside it, what is done beyond.
So what one member has done, no other does again: neither after a crash nor after a rebalance.

The text names what is *not* done, from the committed offset up to the last that is, then the end
(`offset_list.py`). It grows with what is in hand, not with how far others have got beyond a message
that takes its time. Offsets that hold no message (marks of transactions, aborted messages) never
come, and count as done.
"""

from kairos.cluster.kafka.offset_list import read_offsets, write_offsets
from kairos.core.errors import InvalidRequest

UNDONE_LIMIT = 700
SPAN_LIMIT = 1 << 28  # offsets, so that a distance takes four bytes
TEXT_LIMIT = 3_200  # characters; brokers keep 4,096, and `custody.py` has a part in it

MARK = "undone:"  # begins the text


class Watermark:
    """Starts from what was committed; wants the messages in the order of their offsets.

    Raises:
        InvalidRequest: the metadata is not ours; without it, nothing beyond the offset is done.
    """

    def __init__(self, offset: int, metadata: str = "") -> None:
        undone, self._end = _decode(offset, metadata)
        # In order. Those committed by a member before this one stand here before they come.
        self._undone = dict.fromkeys(undone)
        self._expected = undone[::-1]
        self._known_until = self._end
        self._next = offset  # after the last that came

    @property
    def is_full(self) -> bool:
        """Nothing more may come until something is done."""
        if self._next < self._known_until:
            return False  # what comes is known already
        first = next(iter(self._undone), self._next)
        return len(self._undone) >= UNDONE_LIMIT or self._next - first >= SPAN_LIMIT

    def come(self, offset: int) -> bool:
        """A message has come. Return whether it is still to be done."""
        assert offset >= self._next, f"{offset} came after {self._next - 1}"
        self.skip_to(offset)
        self._next = offset + 1
        if offset >= self._known_until:
            self._undone[offset] = None
            return True
        if self._expected and self._expected[-1] == offset:
            self._expected.pop()
            return True
        return False

    def skip_to(self, offset: int) -> None:
        """Nothing that comes from now on is before this offset."""
        while self._expected and self._expected[-1] < offset:
            del self._undone[self._expected.pop()]  # not there any more
        self._next = max(self._next, offset)

    def finish(self, offset: int) -> None:
        """A message that came is done."""
        del self._undone[offset]
        self._end = max(self._end, offset + 1)

    def is_done(self, offset: int) -> bool:
        """Whether the message is known to be done, or not to be."""
        return offset < max(self._end, self._next) and offset not in self._undone

    def state(self) -> tuple[int, str]:
        """What to commit: the offset below which all is done, and the text for what is beyond."""
        after_all = max(self._end, self._next)
        position = next(iter(self._undone), after_all)
        if position >= self._end:
            return position, ""
        marks = [offset for offset in self._undone if offset < self._end]
        text = MARK + write_offsets(position, [*marks[1:], self._end])
        assert len(text) <= TEXT_LIMIT, f"{len(marks)} undone messages take {len(text)} characters"
        return position, text


def _decode(offset: int, text: str) -> tuple[list[int], int]:
    """The offsets that are not done, and the end of what may be."""
    if not text:
        return [], offset
    if not text.startswith(MARK) or len(text) > TEXT_LIMIT:
        raise InvalidRequest("the metadata of a committed offset is not that of a Kairos bus")
    *undone, end = read_offsets(offset, text.removeprefix(MARK), UNDONE_LIMIT)
    return [offset, *undone], end
