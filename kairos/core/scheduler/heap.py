"""A heap whose entries may die or change their keys, and that never stops to tidy up.

A dead entry stays until it comes to the top, or until the heap is moved. Moving is how dead
entries are shed and keys renewed: entries go over to a second heap, a few at a time, taken from the
tail of the first (what is left of it is still a heap), and meanwhile the smaller of the two tops is
the top. So no operation ever takes O(n), and nobody waits for one. Ours.
"""

import heapq
from collections.abc import Callable
from typing import Any, Generic, TypeVar

Entry = TypeVar("Entry", bound=tuple[Any, ...])

_MOVED_PER_PUSH = 4  # of entries that may be dead by half: the move ends before the next is due
_SMALL = 64  # below this, dead entries do no harm


class LazyHeap(Generic[Entry]):
    """`renew` says of an entry what it is now: the same, with another key, or None, dead."""

    def __init__(self, renew: Callable[[Entry], Entry | None]) -> None:
        self._renew = renew
        self._heap: list[Entry] = []
        self._old: list[Entry] = []  # what has not been moved yet
        self._again = False  # move once more when this move has ended

    def __len__(self) -> int:
        """Entries held, the dead included."""
        return len(self._heap) + len(self._old)

    @property
    def moving(self) -> bool:
        return bool(self._old)

    def push(self, entry: Entry, alive: int) -> None:
        """Add an entry; `alive` is how many of all entries are not dead.

        O(log n), and so is everything else.
        """
        heapq.heappush(self._heap, entry)
        if self._old:
            self.move(_MOVED_PER_PUSH)
        elif len(self._heap) > 2 * alive + _SMALL:
            self.start_moving()

    def start_moving(self) -> None:
        """Begin to renew every entry that is here now; if a move is under way, after it."""
        if self._old:
            self._again = True
        else:
            self._heap, self._old, self._again = [], self._heap, False

    def move(self, entries: int) -> None:
        """Go on with a move by so many entries."""
        for _ in range(min(entries, len(self._old))):
            entry = self._renew(self._old.pop())
            if entry is not None:
                heapq.heappush(self._heap, entry)
        if self._again and not self._old:
            self.start_moving()

    def top(self) -> Entry | None:
        """The smallest entry that is alive; None if there is none."""
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
        """About so many entries, evenly from all of it, in no order; there may be dead ones."""
        step = max(1, len(self) // most)
        return self._heap[::step] + self._old[::step]

    def pop(self) -> Entry | None:
        """Take out the smallest entry that is alive."""
        heap = self._top_heap()
        return heapq.heappop(heap) if heap else None

    def clear(self) -> None:
        """None of the entries is alive."""
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
        """Drop what is dead at the top, and put in its place what has changed."""
        while heap:
            entry = self._renew(heap[0])
            if entry is heap[0]:
                return
            heapq.heappop(heap)
            if entry is not None:
                heapq.heappush(self._heap, entry)
