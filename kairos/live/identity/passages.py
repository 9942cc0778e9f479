"""Which earlier reply a text carries, whole or in part, wherever it stands in it.

A passage is a window of `WINDOW` bytes whose hash ends in some zeros: one in eight, and the same
ones wherever the words occur. Whose reply had it is kept for each, so that one that two workflows
had, or that came from a prompt, says nothing. Ours; windows chosen by their hashes are Manber's way
to find similar files.
"""

from collections import Counter

import numpy as np
import numpy.typing as npt

Hashes = npt.NDArray[np.uint32]  # in ascending order

WINDOW = 32  # bytes
_ZEROS = np.uint32(3)  # at the end of a passage's hash
_SEEN = 8192  # bytes of a text that are looked at: half at its beginning, half at its end
_PROMPT_SEEN = 32_768
_SLOTS = 1 << 19
_COMMON = -1  # a passage of several workflows, or of a prompt

_BASE = np.uint32(0x9E3779B1)  # odd, so that it has an inverse
_INVERSE = np.uint32(pow(int(_BASE), -1, 1 << 32))
_POWERS = np.multiply.accumulate(np.full(_PROMPT_SEEN, _BASE))
_INVERSES = np.multiply.accumulate(np.full(_PROMPT_SEEN, _INVERSE))


class Passages:
    """By hash, in a table of fixed size: a later passage takes the place of an earlier one."""

    def __init__(self) -> None:
        self._hashes = np.zeros(_SLOTS, dtype=np.uint32)
        self._replies = np.zeros(_SLOTS, dtype=np.int64)
        self._workflows = np.zeros(_SLOTS, dtype=np.int64)

    def remember(self, text: bytes, reply: int, workflow: int, scope: int, prompt: bytes) -> None:
        """`reply` and `workflow` are numbers from 1 on, and those of one `scope` are apart from all
        others. What is in its prompt as well, others may have from where that has it."""
        hashes = _passages(text, _SEEN, scope)
        slots = _slots(hashes)
        is_new = self._hashes[slots] != hashes
        is_common = _are_in(_passages(prompt, _PROMPT_SEEN, scope), hashes)
        is_common |= ~is_new & (self._workflows[slots] != workflow)
        self._hashes[slots] = hashes
        self._workflows[slots[is_new]] = workflow
        self._replies[slots[is_new]] = reply
        self._replies[slots[is_common]] = _COMMON

    def carried(self, text: bytes, scope: int) -> Counter[int]:
        """By reply, how many of its passages the text has."""
        hashes = _passages(text, _SEEN, scope)
        slots = _slots(hashes)
        replies = self._replies[slots[self._hashes[slots] == hashes]]
        return Counter(replies[replies > 0].tolist())


def _slots(hashes: Hashes) -> npt.NDArray[np.intp]:
    return ((hashes >> _ZEROS) % np.uint32(_SLOTS)).astype(np.intp)


def _are_in(known: Hashes, hashes: Hashes) -> npt.NDArray[np.bool_]:
    if not len(known):
        return np.zeros(len(hashes), dtype=np.bool_)
    places = np.minimum(np.searchsorted(known, hashes), len(known) - 1)
    found: npt.NDArray[np.bool_] = known[places] == hashes
    return found


def _passages(text: bytes, seen: int, scope: int) -> Hashes:
    """The hash of each, once."""
    if len(text) > seen:
        text = text[: seen // 2] + text[-seen // 2 :]
    if len(text) < WINDOW:
        return np.zeros(0, dtype=np.uint32)
    sums = np.zeros(len(text) + 1, dtype=np.uint32)
    terms = np.frombuffer(text, dtype=np.uint8) * _POWERS[: len(text)]
    np.cumsum(terms, out=sums[1:], dtype=np.uint32)
    windows = sums[WINDOW:] - sums[:-WINDOW]
    windows *= _INVERSES[: len(windows)]  # the same bytes are worth the same wherever they stand
    windows ^= windows >> np.uint32(16)
    windows *= _BASE
    windows ^= windows >> np.uint32(13)
    ending = (np.uint32(1) << _ZEROS) - np.uint32(1)
    found = np.sort(windows[windows & ending == 0] ^ np.uint32(scope & ~int(ending) & 0xFFFFFFFF))
    once: Hashes = found[np.r_[True, found[1:] != found[:-1]]] if len(found) else found
    return once
