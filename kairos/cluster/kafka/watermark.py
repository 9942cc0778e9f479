"""Watermark of a partition: which messages are done, though they end in any order.

The offset below which all are done is committed and, as its metadata, what is done beyond it. So
what one member has done no other does again, neither after a crash nor after a rebalance.

The metadata lists the offsets that are *not* done, from the committed offset up to the last that
is, then the end: deltas in LEB128 (7 bits a byte), as base64. Its size grows with the messages in
progress, not with how far others got beyond a slow message. Offsets that hold no message
(transaction markers, aborted messages) never arrive, and count as done.
"""

import base64
import binascii
from collections.abc import Iterable

from kairos.core import InvalidRequest

UNDONE_LIMIT = 700
SPAN_LIMIT = 1 << 28  # offsets, so that a distance takes four bytes
TEXT_LIMIT = 3_200  # characters; brokers keep 4,096, and `custody.py` has a part in it
MARK = "undone:"  # begins the text
_DISTANCE_LIMIT = 1 << 62


def write_offsets(base: int, offsets: Iterable[int]) -> str:
    """Encode offsets that ascend from above `base`."""
    data = bytearray()
    for offset in offsets:
        rest, base = offset - base, offset
        while rest > 0x7F:
            data.append(rest & 0x7F | 0x80)
            rest >>= 7
        data.append(rest)
    return base64.b64encode(data).decode()


def read_offsets(base: int, text: str, limit: int) -> list[int]:
    """Decode what `write_offsets` wrote: at least one offset, at most `limit`.

    Raises:
        InvalidRequest: The text is malformed.
    """
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise InvalidRequest(f"the metadata of a committed offset is damaged: {error}") from None
    offsets: list[int] = []
    step, shift = 0, 0
    for byte in data:
        step |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            if byte == 0 or step >= _DISTANCE_LIMIT or len(offsets) >= limit:
                break
            base += step
            offsets.append(base)
            step = shift = 0
    else:
        if shift == 0 and offsets:
            return offsets
    raise InvalidRequest("the metadata of a committed offset is damaged: malformed list of offsets")


class Watermark:
    """Watermark of one partition, restored from a commit. Add messages in order of their offsets.

    Raises:
        InvalidRequest: The metadata is malformed; without it, nothing beyond the offset is done.
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
        """Whether no message may be added until one is done."""
        if self._next < self._known_until:
            return False  # the state of the next messages was restored from the commit
        first = next(iter(self._undone), self._next)
        return len(self._undone) >= UNDONE_LIMIT or self._next - first >= SPAN_LIMIT

    def come(self, offset: int) -> bool:
        """Add a message. Return whether it is still to be handled."""
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
        """Note that no message with a smaller offset will arrive."""
        while self._expected and self._expected[-1] < offset:
            del self._undone[self._expected.pop()]  # not there any more
        self._next = max(self._next, offset)

    def finish(self, offset: int) -> None:
        del self._undone[offset]
        self._end = max(self._end, offset + 1)

    def is_done(self, offset: int) -> bool:
        """Return whether a message is done, as far as is known."""
        return offset < max(self._end, self._next) and offset not in self._undone

    def count_undone(self, before: int) -> int:
        """Return how many offsets before `before` are not done, as far as is known."""
        known = sum(offset < before for offset in self._undone)
        return known + max(0, before - max(self._end, self._next))

    def state(self) -> tuple[int, str]:
        """Return the offset to commit, below which all are done, and the text for those beyond."""
        after_all = max(self._end, self._next)
        position = next(iter(self._undone), after_all)
        if position >= self._end:
            return position, ""
        marks = [offset for offset in self._undone if offset < self._end]
        text = MARK + write_offsets(position, [*marks[1:], self._end])
        assert len(text) <= TEXT_LIMIT, f"{len(marks)} undone messages take {len(text)} characters"
        return position, text


def _decode(offset: int, text: str) -> tuple[list[int], int]:
    """Return the offsets that are not done, and the end of the range that may hold done ones."""
    if not text:
        return [], offset
    if not text.startswith(MARK) or len(text) > TEXT_LIMIT:
        raise InvalidRequest("the metadata of a committed offset is not that of a Kairos bus")
    *undone, end = read_offsets(offset, text.removeprefix(MARK), UNDONE_LIMIT)
    return [offset, *undone], end
