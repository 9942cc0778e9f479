"""The first few entries of a heap, kept out of it while they stay the first: those that wait before
a full pool are looked at after each fact. Ours."""

from bisect import insort
from collections.abc import Callable, Mapping
from typing import Generic

from kairos.core.model import Request
from kairos.core.scheduler.heap import Entry, LazyHeap
from kairos.core.scheduler.waiting import KeyEntry, WaitingRequest


class Front(Generic[Entry]):
    """At most `most` entries, in order. Where they are, they are not in the heap."""

    def __init__(
        self, heap: LazyHeap[Entry], renew: Callable[[Entry], Entry | None], most: int
    ) -> None:
        """`renew`: that of the heap."""
        self._heap, self._renew, self._most = heap, renew, most
        self._entries: list[Entry] = []

    def entries(self, count: int) -> list[Entry]:
        """The first of all that are alive: so many, if there are as many."""
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
        """None of the entries is alive, nor any in the heap."""
        self._entries = []
        self._heap.clear()

    def put_back(self) -> None:
        """All of them."""
        for entry in self._entries:
            self._heap.put_back(entry)
        self._entries = []

    def _up_to_date(self) -> list[Entry]:
        """Those that are alive and have not changed; what has goes back to the heap."""
        kept = []
        for entry in self._entries:
            renewed = self._renew(entry)
            if renewed is entry:
                kept.append(entry)
            elif renewed is not None:
                self._heap.put_back(renewed)
        return kept


class FirstFew:
    """The requests of the first few entries. While these stay, so do the very lists: what is known
    of their requests need not be looked for again."""

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
        """Those behind so many of them."""
        return self._behind_first if count == 1 else self._requests[count:]
