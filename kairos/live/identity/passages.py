"""Which earlier reply a text carries, whole or in part, wherever it stands in it.

A passage is a window of `WINDOW` bytes whose hash ends in some zeros: one in eight, and the same
ones wherever the words occur. Whose reply had it is kept for each, so that one that two workflows
had, or that came from a prompt, says nothing. Ours; windows chosen by their hashes are Manber's way
to find similar files.
"""

from collections import Counter
from collections.abc import Sequence
from itertools import accumulate

import numpy as np
import numpy.typing as npt

Hashes = npt.NDArray[np.uint32]

WINDOW = 32  # bytes
TEXT_BYTES = 32_768  # of a text that are looked at: half at its beginning, half at its end
_ZEROS = np.uint32(3)  # at the end of a passage's hash
_ENDING = np.uint32(7)
_SLOTS = 1 << 19
_PROMPT_SLOTS = 1 << 16
_COMMON = -1  # a passage of several workflows, or of a prompt

_BASE = np.uint32(0x9E3779B1)  # odd, so that it has an inverse
_INVERSE = np.uint32(pow(int(_BASE), -1, 1 << 32))
_POWERS = np.multiply.accumulate(np.full(TEXT_BYTES, _BASE))
_INVERSES = np.multiply.accumulate(np.full(TEXT_BYTES, _INVERSE))


class Passages:
    """By hash, in a table of fixed size: a later passage takes the place of an earlier one."""

    def __init__(self) -> None:
        self._hashes = np.zeros(_SLOTS, dtype=np.uint32)
        self._replies = np.zeros(_SLOTS, dtype=np.int64)
        self._workflows = np.zeros(_SLOTS, dtype=np.int64)

    def remember(
        self, found: Hashes, reply: int, workflow: int, scope: int, prompt: Sequence[Hashes]
    ) -> None:
        """`found` in a reply; `reply` and `workflow` are numbers from 1 on, and those of one
        `scope` are apart from all others. What is in its prompt as well, others may have from where
        that has it."""
        is_common = _are_in(prompt, found)
        hashes = _within(found, scope)
        slots = _slots(hashes)
        is_new = self._hashes[slots] != hashes
        is_common |= ~is_new & (self._workflows[slots] != workflow)
        self._hashes[slots] = hashes
        self._workflows[slots[is_new]] = workflow
        self._replies[slots[is_new]] = reply
        self._replies[slots[is_common]] = _COMMON

    def carried(self, found: Hashes, scope: int) -> Counter[int]:
        """By reply, how many of its passages are among those that were found in a text."""
        hashes = _within(found, scope)
        slots = _slots(hashes)
        replies = self._replies[slots[self._hashes[slots] == hashes]]
        return Counter(replies[replies > 0].tolist())


def _within(found: Hashes, scope: int) -> Hashes:
    return found ^ np.uint32(scope & ~int(_ENDING) & 0xFFFFFFFF)


def _slots(hashes: Hashes) -> npt.NDArray[np.intp]:
    return ((hashes >> _ZEROS) % np.uint32(_SLOTS)).astype(np.intp)


def _are_in(known: Sequence[Hashes], hashes: Hashes) -> npt.NDArray[np.bool_]:
    """Which of the hashes are among those that are known, of which there may be many more."""
    is_possible = np.zeros(_PROMPT_SLOTS, dtype=np.bool_)
    is_possible[_prompt_slots(hashes)] = True
    together = np.concatenate(known) if known else np.zeros(0, dtype=np.uint32)
    found = together[is_possible[_prompt_slots(together)]]
    if not len(found):
        return np.zeros(len(hashes), dtype=np.bool_)
    return np.isin(hashes, found)


def _prompt_slots(hashes: Hashes) -> npt.NDArray[np.uint16]:
    return (hashes >> _ZEROS).astype(np.uint16)


def once(found: Sequence[Hashes]) -> Hashes:
    """Each hash once, in ascending order."""
    if not found:
        return np.zeros(0, dtype=np.uint32)
    hashes = np.sort(found[0] if len(found) == 1 else np.concatenate(found))
    if len(hashes) < 2:
        return hashes
    is_first = np.empty(len(hashes), dtype=np.bool_)
    is_first[0] = True
    np.not_equal(hashes[1:], hashes[:-1], out=is_first[1:])
    return hashes[is_first]


def cut(text: bytes, most: int) -> bytes:
    return text if len(text) <= most else text[: most // 2] + text[-most // 2 :]


def passages_of(texts: Sequence[bytes]) -> list[Hashes]:
    """The hashes of each text's passages, in order. Short texts are read together, since what numpy
    takes for itself is more than what it takes for them."""
    found: list[Hashes] = []
    batch: list[bytes] = []
    for text in (cut(each, TEXT_BYTES) for each in texts):
        if batch and sum(map(len, batch)) + len(text) > TEXT_BYTES:
            found += _read(batch)
            batch = []
        batch.append(text)
    return found + _read(batch) if batch else found


def _read(texts: Sequence[bytes]) -> list[Hashes]:
    """Of texts that have `TEXT_BYTES` together."""
    text = b"".join(texts)
    if len(text) < WINDOW:
        return [np.zeros(0, dtype=np.uint32) for _ in texts]
    sums = np.zeros(len(text) + 1, dtype=np.uint32)
    np.multiply(np.frombuffer(text, dtype=np.uint8), _POWERS[: len(text)], out=sums[1:])
    np.add.accumulate(sums, out=sums)
    windows = sums[WINDOW:] - sums[:-WINDOW]
    windows *= _INVERSES[: len(windows)]  # the same bytes are worth the same wherever they stand
    windows ^= windows >> np.uint32(16)
    windows *= _BASE
    windows ^= windows >> np.uint32(13)
    places = np.flatnonzero((windows & _ENDING) == 0)
    hashes = windows[places]
    ends = list(accumulate(map(len, texts)))
    begins = [0, *ends[:-1]]
    lasts = [max(begin, end - WINDOW + 1) for begin, end in zip(begins, ends, strict=True)]
    bounds = np.searchsorted(places, [begins, lasts])
    return [hashes[begin:last].copy() for begin, last in bounds.T.tolist()]
