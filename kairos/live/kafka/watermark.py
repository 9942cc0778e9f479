"""Which messages of a partition are done, though they end in any order.

What is committed is the offset below which all is done and, as text beside it, what is done beyond.
So what one member has done, no other does again: neither after a crash nor after a rebalance.

The text names what is *not* done, from the committed offset up to the last that is: the distances
from one to the next, then to the end, as numbers of seven bits a byte (LEB128), in base64. It grows
with what is in hand, not with how far others have got beyond a message that takes its time. Offsets
that hold no message (marks of transactions, aborted messages) never come, and count as done.
"""

import base64
import binascii
from itertools import pairwise

from kairos.errors import InvalidRequest

UNDONE_LIMIT = 700
SPAN_LIMIT = 1 << 28  # offsets, so that a distance takes four bytes
TEXT_LIMIT = 4_000  # characters; brokers keep 4,096

_MARK = "undone:"


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
        steps = [later - earlier for earlier, later in pairwise([*marks, self._end])]
        return position, _encode(steps)


def _encode(steps: list[int]) -> str:
    data = bytearray()
    for step in steps:
        rest = step
        while rest > 0x7F:
            data.append(rest & 0x7F | 0x80)
            rest >>= 7
        data.append(rest)
    text = _MARK + base64.b64encode(data).decode()
    assert len(text) <= TEXT_LIMIT, f"{len(steps)} undone messages take {len(text)} characters"
    return text


def _decode(offset: int, text: str) -> tuple[list[int], int]:
    """The offsets that are not done, and the end of what may be."""
    if not text:
        return [], offset
    if not text.startswith(_MARK) or len(text) > TEXT_LIMIT:
        raise InvalidRequest("the metadata of a committed offset is not that of a Kairos bus")
    try:
        data = base64.b64decode(text.removeprefix(_MARK), validate=True)
    except (binascii.Error, ValueError) as error:
        raise InvalidRequest(f"the metadata of a committed offset is damaged: {error}") from None
    undone, step, shift = [offset], 0, 0
    for byte in data:
        step |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            if byte == 0 or step >= 1 << 62 or len(undone) > UNDONE_LIMIT:
                break
            undone.append(undone[-1] + step)
            step = shift = 0
    else:
        if shift == 0 and len(undone) > 1:
            return undone[:-1], undone[-1]
    raise InvalidRequest(
        "the metadata of a committed offset is damaged: it cannot have been written"
    )
