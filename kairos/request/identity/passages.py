"""Index of earlier replies' passages, which finds the reply that a text carries, whole or in part.

A passage is a window of `WINDOW` bytes whose first eight bytes have a small hash: one window in
eight, and the same ones wherever the words occur. The table has the reply of each passage; a
passage of two workflows, or from a prompt, proves nothing. `reading.c` implements it where it is
compiled, and numpy elsewhere, with the same results. Not in the paper; windows chosen by their
hashes are Manber's method to find similar files.
"""

import ctypes
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import accumulate

import numpy as np
import numpy.typing as npt

from kairos.request.native import READING, PassageTable, Reading

Hashes = bytes  # 32 bits each, as the machine has them

WINDOW = 32  # bytes
TEXT_BYTES = 32_768  # of a text that are read: half at its beginning, half at its end
_SLOTS = 1 << 19
_COMMON = -1  # a passage of several workflows, or of a prompt
_HASH_BYTES = 4
_TENANTS = 1 << 16  # numbers; tenants that have the same are as one in what they hold
_WAITING_WORDS = 2048  # 64 bits each: `Halves` in `reading.c`

_WORD = 8  # bytes, of which a window has four
_OFFSETS = np.arange(0, WINDOW, _WORD)[:, np.newaxis]
_FACTOR = np.uint64(0x9E3779B97F4A7C15)  # odd, of chance
_FACTORS = np.array(
    [0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0xD6E8FEB86659FD93, 0xFF51AFD7ED558CCD],
    dtype=np.uint64,
)[:, np.newaxis]
_CHOSEN = np.uint64(1 << 61)  # one in eight is below
_HALF = np.uint64(32)  # bits

_Hashes = npt.NDArray[np.uint32]
_NOBODYS: Mapping[int, int] = {}


class Passages:
    """Passages by hash, in a table of fixed size.

    A later passage replaces an earlier one, unless that belongs to a tenant with fewer (longest
    queue drop, as in `kairos/core/shared_lru.py`).
    """

    def __init__(self) -> None:
        self._hashes = np.zeros(_SLOTS, dtype=np.uint32)
        self._owners = np.zeros((_SLOTS, 2), dtype=np.int64)  # reply and workflow; 0: it is free
        self._tenants = np.zeros(_SLOTS, dtype=np.uint16)  # by number, a part of their scope
        self._slots_held = np.zeros(_TENANTS, dtype=np.int32)  # slots, by tenant
        self._waits = False

    def passages_of(self, texts: Sequence[bytes]) -> list[Hashes]:
        """Return the hashes of each text's passages, in order.

        Short texts are read together, since numpy's overhead exceeds the work on them.
        """
        found: list[Hashes] = []
        batch: list[bytes] = []
        for text in (cut(each, TEXT_BYTES) for each in texts):
            if batch and sum(map(len, batch)) + len(text) > TEXT_BYTES:
                found += _read(batch)
                batch = []
            batch.append(text)
        return found + _read(batch) if batch else found

    def of_reply(self, text: bytes, scope: int) -> Hashes:  # noqa: ARG002
        """Return the passages of a reply, which will be stored later."""
        [found] = self.passages_of([text])
        self._waits = self._waits or bool(found)
        return found

    def clear_waiting(self) -> None:
        self._waits = False

    def remember(
        self, found: Hashes, reply: int, workflow: int, scope: int, prompt: Hashes
    ) -> None:
        """Store the passages `found` in a reply. Passages that its prompt also has are excluded.

        `reply` and `workflow` are numbers from 1 on; `scope` separates tenants.
        """
        hashes = _within(found, scope)
        slots = _slots(hashes)
        is_known = (self._hashes[slots] == hashes) & (self._owners[slots, 0] != 0)
        is_common = _are_in(_array(prompt), _array(found))
        is_common |= is_known & (self._owners[slots, 1] != workflow)
        is_new = ~is_known
        is_new[is_new] = self._take(slots[is_new], scope % _TENANTS)
        new = slots[is_new]
        self._hashes[new] = hashes[is_new]
        self._owners[new] = reply, workflow
        common = slots[is_common]
        self._owners[common[self._tenants[common] == scope % _TENANTS], 0] = _COMMON

    def _take(self, slots: npt.NDArray[np.intp], tenant: int) -> npt.NDArray[np.bool_]:
        """Return which of the slots the tenant gets: free, its own, or a larger tenant's."""
        is_free = self._owners[slots, 0] == 0
        is_anothers = ~is_free & (self._tenants[slots] != tenant)
        if not is_anothers.any():
            free = np.unique(slots[is_free])
            self._tenants[free] = tenant
            self._slots_held[tenant] += len(free)
            return np.ones(len(slots), dtype=np.bool_)
        return np.array([self._takes(slot, tenant) for slot in slots.tolist()], dtype=np.bool_)

    def _takes(self, slot: int, tenant: int) -> bool:
        owner = int(self._tenants[slot])
        if self._owners[slot, 0] != 0:
            if owner == tenant:
                return True
            if self._slots_held[owner] < self._slots_held[tenant]:
                return False
            self._slots_held[owner] -= 1
        self._owners[slot, 0] = _COMMON  # until it is said whose it is
        self._tenants[slot] = tenant
        self._slots_held[tenant] += 1
        return True

    def count_carried(self, found: Hashes, scope: int) -> Mapping[int, int] | None:
        """Return how many of the passages each reply has.

        None: a buffered passage may be among them.
        """
        if self._waits:
            return None
        hashes = _within(found, scope)
        slots = _slots(hashes)
        (places,) = (self._hashes[slots] == hashes).nonzero()
        return _counted(hashes[places].tolist(), self._owners[slots[places], 0].tolist())


class CompiledPassages(Passages):
    """Passages by `reading.c`."""

    def __init__(self, reading: Reading) -> None:
        super().__init__()
        self._reading = reading
        found, replies = (ctypes.c_uint32 * TEXT_BYTES)(), (ctypes.c_int64 * TEXT_BYTES)()
        marks, waiting = (ctypes.c_uint8 * (2 * TEXT_BYTES))(), (ctypes.c_uint64 * _WAITING_WORDS)()
        self._waiting = ctypes.addressof(waiting)
        hashes, owners = self._hashes.ctypes.data, self._owners.ctypes.data
        tenants, held = self._tenants.ctypes.data, self._slots_held.ctypes.data
        table = PassageTable(_SLOTS, hashes, owners, self._waiting, tenants, held)
        self._held = table, found, replies, marks, waiting  # as long as their addresses
        self._table, self._found, self._replies, self._marks, _ = map(ctypes.addressof, self._held)
        # What was found, for the time of a call.
        self._found_bytes = memoryview(found).cast("B")

    def passages_of(self, texts: Sequence[bytes]) -> list[Hashes]:
        return [self._of(cut(each, TEXT_BYTES)) for each in texts]

    def _of(self, text: bytes) -> Hashes:
        count = self._reading.passages(text, len(text), self._found)
        return bytes(self._found_bytes[: _HASH_BYTES * count])

    def of_reply(self, text: bytes, scope: int) -> Hashes:
        text = cut(text, TEXT_BYTES)
        found = self._found
        count = self._reading.passages_of_reply(self._table, text, len(text), scope, found)
        return bytes(self._found_bytes[: _HASH_BYTES * count])

    def clear_waiting(self) -> None:
        ctypes.memset(self._waiting, 0, 8 * _WAITING_WORDS)

    def remember(
        self, found: Hashes, reply: int, workflow: int, scope: int, prompt: Hashes
    ) -> None:
        count = min(len(found) // _HASH_BYTES, TEXT_BYTES)
        of_prompt = prompt, len(prompt) // _HASH_BYTES
        scratch = self._found, self._marks
        self._reading.remember(
            self._table, found, count, scope, reply, workflow, *of_prompt, *scratch
        )

    def count_carried(self, found: Hashes, scope: int) -> Mapping[int, int] | None:
        count = min(len(found) // _HASH_BYTES, TEXT_BYTES)
        same = self._reading.carried(self._table, found, count, scope, self._found, self._replies)
        if same <= 0:
            return None if same else _NOBODYS
        _, hashes, replies, *_ = self._held
        return _counted(hashes[:same], replies[:same])


def passages() -> Passages:
    return Passages() if READING is None else CompiledPassages(READING)


def cut(text: bytes, most: int) -> bytes:
    return text if len(text) <= most else text[: most // 2] + text[-most // 2 :]


def _counted(hashes: Sequence[int], replies: Sequence[int]) -> Mapping[int, int]:
    """Count by reply; a passage found twice counts once."""
    each_once = dict(zip(hashes, replies, strict=True))
    return Counter(reply for reply in each_once.values() if reply > 0)


def _array(hashes: Hashes) -> _Hashes:
    return np.frombuffer(hashes, dtype=np.uint32)


def _within(found: Hashes, scope: int) -> _Hashes:
    return _array(found) ^ np.uint32(scope)


def _slots(hashes: _Hashes) -> npt.NDArray[np.intp]:
    return (hashes & np.uint32(_SLOTS - 1)).astype(np.intp)


def _are_in(known: _Hashes, hashes: _Hashes) -> npt.NDArray[np.bool_]:
    """Return which of the hashes are among the known ones, which may be many more."""
    is_possible = np.zeros(1 << 16, dtype=np.bool_)
    is_possible[hashes.astype(np.uint16)] = True
    found = known[is_possible[known.astype(np.uint16)]]
    if not len(found):
        return np.zeros(len(hashes), dtype=np.bool_)
    found.sort()
    places = np.minimum(found.searchsorted(hashes), len(found) - 1)
    is_in: npt.NDArray[np.bool_] = found[places] == hashes
    return is_in


def _read(texts: Sequence[bytes]) -> list[Hashes]:
    """Return the passages of texts with at most `TEXT_BYTES` together."""
    text = b"".join(texts)
    if len(text) < WINDOW:
        return [b"" for _ in texts]
    shape = len(text) - _WORD + 1
    words = np.ndarray(shape, dtype="<u8", buffer=text, strides=(1,)) * _FACTOR
    (places,) = (words[: len(text) - WINDOW + 1] < _CHOSEN).nonzero()
    windows = words[places + _OFFSETS]
    windows ^= windows >> _HALF
    windows *= _FACTORS
    hashes = (np.add.reduce(windows, axis=0) >> _HALF).astype(np.uint32)
    ends = list(accumulate(map(len, texts)))
    lasts = [max(0, end - WINDOW + 1) for end in ends]
    begins = places.searchsorted([0, *ends[:-1]]).tolist()
    return [
        hashes[begin : max(begin, last)].tobytes()
        for begin, last in zip(begins, places.searchsorted(lasts).tolist(), strict=True)
    ]
