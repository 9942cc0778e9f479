"""The first few entries of a heap, stored outside of it while they stay first. Not in the paper.

Requests that wait at the head of the queue of a full pool are checked after each fact, so reading
them must be cheap.
"""

from bisect import insort
from collections.abc import Callable, Mapping
from typing import Generic

from kairos.core.model import Request
from kairos.core.scheduler.heap import Entry, LazyHeap
from kairos.core.scheduler.waiting import KeyEntry, WaitingRequest


class Front(Generic[Entry]):
    """Up to `most` first entries, in order. While they are here, they are not in the heap."""

    def __init__(
        self, heap: LazyHeap[Entry], renew: Callable[[Entry], Entry | None], most: int
    ) -> None:
        """Create an empty front of a heap.

        Args:
            heap: the heap.
            renew: the heap's `renew`.
            most: maximum number of entries stored here.
        """
        self._heap, self._renew, self._most = heap, renew, most
        self._entries: list[Entry] = []

    def entries(self, count: int) -> list[Entry]:
        """Return the first `count` live entries, or fewer if there are not that many."""
        entries, heap = self._entries, self._heap
        if entries:
            entries = self._entries = self._up_to_date()
            while entries and (top := heap.top()) is not None and top < entries[-1]:
                heap.pop()
                insort(entries, top)
                if len(entries) > self._most:
                    heap.put_back(entries.pop())
        while len(entries) < count and (entry := heap.pop()) is not None:
            entries.append(entry)
        return entries[:count]

    def clear(self) -> None:
        """Drop all entries, in the heap too, because all are dead."""
        self._entries = []
        self._heap.clear()

    def put_back(self) -> None:
        """Return all entries to the heap."""
        for entry in self._entries:
            self._heap.put_back(entry)
        self._entries = []

    def _up_to_date(self) -> list[Entry]:
        """Return the live, unchanged entries; changed ones are returned to the heap."""
        kept = []
        for entry in self._entries:
            renewed = self._renew(entry)
            if renewed is entry:
                kept.append(entry)
            elif renewed is not None:
                self._heap.put_back(renewed)
        return kept


class FirstFew:
    """Requests of the first few entries.

    While the entries stay the same, the identical list objects are returned, so callers can cache
    what they know about them.
    """

    def __init__(self) -> None:
        self._entries: list[KeyEntry] = []
        self._requests: list[Request] = []
        self._behind_first: list[Request] = []

    def of(self, entries: list[KeyEntry], waiting: Mapping[str, WaitingRequest]) -> list[Request]:
        if entries != self._entries:
            self._entries = entries
            self._requests = [waiting[request_id].request for *_, request_id in entries]
            self._behind_first = self._requests[1:]
        return self._requests

    def behind(self, count: int) -> list[Request]:
        """Return the requests behind the first `count`."""
        return self._behind_first if count == 1 else self._requests[count:]
