"""Heap whose entries may die or change keys, without any O(n) clean-up pause. Not in the paper.

A dead entry stays until it reaches the top or the heap is moved. A move drops dead entries and
renews keys: entries are transferred to a second heap, a few at a time, from the tail of the first,
whose rest remains a heap. During a move, the top is the smaller of the two tops. So no single
operation takes O(n).
"""

import heapq
from collections.abc import Callable
from typing import Any, Generic, TypeVar

Entry = TypeVar("Entry", bound=tuple[Any, ...])

_MOVED_PER_PUSH = 4  # half may be dead, so a move ends before the next one is due
_SMALL = 64  # number of dead entries that is always tolerated


class LazyHeap(Generic[Entry]):
    """Heap with lazy deletion and lazy key updates.

    `renew` returns the current form of an entry: the same object, one with another key, or None if
    it is dead.
    """

    def __init__(self, renew: Callable[[Entry], Entry | None]) -> None:
        self._renew = renew
        self._heap: list[Entry] = []
        self._old: list[Entry] = []  # entries not moved yet
        self._again = False  # whether to start another move after this one

    def __len__(self) -> int:
        """Return the number of entries, dead ones included."""
        return len(self._heap) + len(self._old)

    @property
    def moving(self) -> bool:
        return bool(self._old)

    def push(self, entry: Entry, alive: int) -> None:
        """Add an entry, in O(log n) like every other operation. `alive`: number of live entries."""
        heapq.heappush(self._heap, entry)
        if self._old:
            self.move(_MOVED_PER_PUSH)
        elif len(self._heap) > 2 * alive + _SMALL:
            self.start_moving()

    def start_moving(self) -> None:
        """Start to renew every present entry; if a move is under way, after it."""
        if self._old:
            self._again = True
        else:
            self._heap, self._old, self._again = [], self._heap, False

    def move(self, entries: int) -> None:
        """Continue a move by this many entries."""
        for _ in range(min(entries, len(self._old))):
            entry = self._renew(self._old.pop())
            if entry is not None:
                heapq.heappush(self._heap, entry)
        if self._again and not self._old:
            self.start_moving()

    def top(self) -> Entry | None:
        """Return the smallest live entry, if any."""
        heap = self._heap
        if not self._old:
            if not heap:
                return None
            entry = heap[0]
            if self._renew(entry) is entry:
                return entry
        found = self._top_heap()
        return found[0] if found else None

    def some(self, most: int) -> list[Entry]:
        """Return a sample of about `most` entries, unordered, evenly spread; some may be dead."""
        step = max(1, len(self) // most)
        return self._heap[::step] + self._old[::step]

    def pop(self) -> Entry | None:
        """Remove and return the smallest live entry, if any."""
        heap = self._top_heap()
        return heapq.heappop(heap) if heap else None

    def clear(self) -> None:
        """Drop all entries, because all are dead."""
        self._heap.clear()
        self._old.clear()
        self._again = False

    def put_back(self, entry: Entry) -> None:
        heapq.heappush(self._heap, entry)

    def _top_heap(self) -> list[Entry] | None:
        self._shed(self._heap)
        if not self._old:
            return self._heap or None
        self._shed(self._old)
        if not self._old:
            return self._heap or None
        if not self._heap or self._old[0] < self._heap[0]:
            return self._old
        return self._heap

    def _shed(self, heap: list[Entry]) -> None:
        """Drop dead entries from the top, and replace changed ones."""
        while heap:
            entry = self._renew(heap[0])
            if entry is heap[0]:
                return
            heapq.heappop(heap)
            if entry is not None:
                heapq.heappush(self._heap, entry)
