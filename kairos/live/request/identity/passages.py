"""Which earlier reply a text carries, whole or in part, wherever it stands in it.

A passage is a window of `WINDOW` bytes whose first eight have a small hash: one in eight, and the
same ones wherever the words occur. Whose reply had it is kept for each, so that one that two
workflows had, or that came from a prompt, says nothing. Ours; windows chosen by their hashes are
Manber's way to find similar files.
"""

from collections import Counter
from collections.abc import Sequence
from itertools import accumulate

import numpy as np
import numpy.typing as npt

Hashes = npt.NDArray[np.uint32]

WINDOW = 32  # bytes
TEXT_BYTES = 32_768  # of a text that are looked at: half at its beginning, half at its end
_SLOTS = 1 << 19
_COMMON = -1  # a passage of several workflows, or of a prompt

_WORD = 8  # bytes, of which a window has four
_OFFSETS = np.arange(0, WINDOW, _WORD)[:, np.newaxis]
_FACTOR = np.uint64(0x9E3779B97F4A7C15)  # odd, of chance
_FACTORS = np.array(
    [0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0xD6E8FEB86659FD93, 0xFF51AFD7ED558CCD],
    dtype=np.uint64,
)[:, np.newaxis]
_CHOSEN = np.uint64(1 << 61)  # one in eight is below
_HALF = np.uint64(32)  # bits
_NONE: Hashes = np.zeros(0, dtype=np.uint32)


class Passages:
    """By hash, in a table of fixed size: a later passage takes the place of an earlier one."""

    def __init__(self) -> None:
        self._hashes = np.zeros(_SLOTS, dtype=np.uint32)
        self._owners = np.zeros((_SLOTS, 2), dtype=np.int64)  # reply and workflow

    def remember(
        self, found: Hashes, reply: int, workflow: int, scope: int, prompt: Sequence[Hashes]
    ) -> None:
        """`found` in a reply; `reply` and `workflow` are numbers from 1 on, and those of one
        `scope` are apart from all others. What is in its prompt as well, others may have from where
        that has it."""
        if len(found) == 0:
            return
        hashes = _within(found, scope)
        slots = _slots(hashes)
        is_known = self._hashes[slots] == hashes
        is_common = _are_in(prompt, found)
        if is_known.any():
            is_common |= is_known & (self._owners[slots, 1] != workflow)
            new = slots[~is_known]
            self._hashes[new] = hashes[~is_known]
            self._owners[new] = reply, workflow
        else:
            self._hashes[slots] = hashes
            self._owners[slots] = reply, workflow
        if is_common.any():
            self._owners[slots[is_common], 0] = _COMMON

    def carried(self, found: Sequence[Hashes], scope: int) -> Counter[int]:
        """By reply, how many of its passages are among those that were found in texts."""
        hashes = _within(np.concatenate(found) if len(found) > 1 else found[0], scope)
        slots = _slots(hashes)
        (places,) = (self._hashes[slots] == hashes).nonzero()
        if len(places) == 0:
            return Counter()
        replies = self._owners[slots[places], 0].tolist()
        each_once = dict(zip(hashes[places].tolist(), replies, strict=True))
        return Counter(reply for reply in each_once.values() if reply > 0)


def _within(found: Hashes, scope: int) -> Hashes:
    return found ^ np.uint32(scope & 0xFFFFFFFF)


def _slots(hashes: Hashes) -> npt.NDArray[np.intp]:
    return (hashes & np.uint32(_SLOTS - 1)).astype(np.intp)


def _are_in(known: Sequence[Hashes], hashes: Hashes) -> npt.NDArray[np.bool_]:
    """Which of the hashes are among those that are known, of which there may be many more."""
    together = np.concatenate(known) if known else _NONE
    is_possible = np.zeros(1 << 16, dtype=np.bool_)
    is_possible[hashes.astype(np.uint16)] = True
    found = together[is_possible[together.astype(np.uint16)]]
    if not len(found):
        return np.zeros(len(hashes), dtype=np.bool_)
    found.sort()
    places = np.minimum(found.searchsorted(hashes), len(found) - 1)
    is_in: npt.NDArray[np.bool_] = found[places] == hashes
    return is_in


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
        return [_NONE for _ in texts]
    shape = len(text) - _WORD + 1
    words = np.ndarray(shape, dtype="<u8", buffer=text, strides=(1,)) * _FACTOR
    (places,) = (words[: len(text) - WINDOW + 1] < _CHOSEN).nonzero()
    windows = words[places + _OFFSETS]
    windows ^= windows >> _HALF
    windows *= _FACTORS
    hashes = (np.add.reduce(windows, axis=0) >> _HALF).astype(np.uint32)
    if len(texts) == 1:
        return [hashes]
    ends = list(accumulate(map(len, texts)))
    lasts = [max(0, end - WINDOW + 1) for end in ends]
    begins = places.searchsorted([0, *ends[:-1]]).tolist()
    return [
        hashes[begin : max(begin, last)].copy()
        for begin, last in zip(begins, places.searchsorted(lasts).tolist(), strict=True)
    ]
