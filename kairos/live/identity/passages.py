"""Which earlier reply a text carries, whole or in part, wherever it stands in it.

A reply is remembered by some of its passages: windows of `WINDOW` bytes, of which every eighth is
eligible, by its hash. In a text all eligible windows are looked up at once. A passage that two
workflows have says nothing. Ours; windows by their hashes are Manber's way to find similar files.
"""

from collections import Counter

import numpy as np
import numpy.typing as npt

Hashes = npt.NDArray[np.uint64]

WINDOW = 32  # bytes
_ELIGIBLE = np.uint64(7)  # bits that are 0 in a passage's hash
_PASSAGES = 16  # of a reply, that are remembered
_SEEN = 8192  # bytes of a text that are looked at: half at its beginning, half at its end
_SLOTS = 1 << 18
_COMMON = -1  # a passage of several workflows

_BASE = np.uint64(0x9E3779B97F4A7C15)  # odd, so that it has an inverse
_MIX = np.uint64(0xD6E8FEB86659FD93)
_INVERSE = np.uint64(pow(int(_BASE), -1, 1 << 64))
_POWERS: Hashes = np.multiply.accumulate(np.full(_SEEN, _BASE))
_INVERSES: Hashes = np.multiply.accumulate(np.full(_SEEN, _INVERSE))


class Passages:
    """By hash, in a table of fixed size: a later passage takes the place of an earlier one."""

    def __init__(self) -> None:
        self._hashes = np.zeros(_SLOTS, dtype=np.uint64)
        self._replies = np.zeros(_SLOTS, dtype=np.int64)
        self._workflows = np.zeros(_SLOTS, dtype=np.int64)

    def remember(self, text: bytes, reply: int, workflow: int, scope: int, but: bytes) -> None:
        """`reply` and `workflow` are numbers from 1 on, and those of one `scope` are apart from all
        others. What is in `but` as well, the reply's prompt, others may have from where that has
        it."""
        seen = _seen(text)
        hashes, begins = _eligible(seen)
        hashes ^= np.uint64(scope)
        slots = self._slots(hashes)
        others = slots[(self._hashes[slots] == hashes) & (self._workflows[slots] != workflow)]
        self._replies[others] = _COMMON
        for n in range(0, len(begins), -(-len(begins) // _PASSAGES) or 1):
            slot, at = slots[n], begins[n]
            if self._hashes[slot] != hashes[n] and seen[at : at + WINDOW] not in but:
                self._hashes[slot], self._workflows[slot] = hashes[n], workflow
                self._replies[slot] = reply

    def carried(self, text: bytes, scope: int) -> Counter[int]:
        """By reply, how many of its passages the text has."""
        hashes, _ = _eligible(_seen(text))
        hashes = np.unique(hashes ^ np.uint64(scope))
        slots = self._slots(hashes)
        replies = self._replies[slots[self._hashes[slots] == hashes]]
        return Counter(replies[replies > 0].tolist())

    def _slots(self, hashes: Hashes) -> npt.NDArray[np.intp]:
        return (hashes % np.uint64(_SLOTS)).astype(np.intp)


def _seen(text: bytes) -> bytes:
    return text if len(text) <= _SEEN else text[: _SEEN // 2] + text[-_SEEN // 2 :]


def _eligible(text: bytes) -> tuple[Hashes, list[int]]:
    """Hashes of the windows that may be passages, and where these begin."""
    if len(text) < WINDOW:
        return np.zeros(0, dtype=np.uint64), []
    sums = np.zeros(len(text) + 1, dtype=np.uint64)
    terms = np.frombuffer(text, dtype=np.uint8) * _POWERS[: len(text)]
    np.cumsum(terms, out=sums[1:])
    windows = sums[WINDOW:] - sums[:-WINDOW]
    windows *= _INVERSES[: len(windows)]  # the same bytes are worth the same wherever they stand
    windows ^= windows >> np.uint64(32)
    windows *= _MIX
    windows ^= windows >> np.uint64(29)
    begins = np.flatnonzero(windows & _ELIGIBLE == 0)
    return windows[begins], begins.tolist()
