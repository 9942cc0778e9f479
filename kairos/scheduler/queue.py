"""The wait queue: requests of one model, in the order of the policy."""

import heapq
from collections.abc import Callable, Iterator
from typing import Any

from kairos.model import Request
from kairos.scheduler.policies import Key, Policy


class WaitQueue:
    """A heap by policy key, and a second one by KV need; equal keys leave in order of arrival.

    Removal is lazy: an entry whose request is gone is dropped when it comes to the top, and both
    heaps are rebuilt when more than half of their entries are such. Push, pop and removal are
    O(log n) amortised; passing over k requests that do not fit adds O(k log n) to a pop.
    """

    def __init__(self, policy: Policy, arrivals: Iterator[int]) -> None:
        """`arrivals` numbers the requests; queues that share it agree on who came first."""
        self._policy = policy
        self._arrivals = arrivals
        self._waiting: dict[str, tuple[int, Request]] = {}
        self._by_key: list[tuple[Key, int, str]] = []
        self._by_need: list[tuple[int, int, str]] = []

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._waiting

    def requests(self) -> list[Request]:
        """All waiting requests, in order of arrival."""
        return [request for _, request in self._waiting.values()]

    def push(self, request: Request) -> None:
        assert request.id not in self._waiting
        seq = next(self._arrivals)
        self._waiting[request.id] = (seq, request)
        heapq.heappush(self._by_key, (self._policy.key(request), seq, request.id))
        heapq.heappush(self._by_need, (request.peak_kv_tokens, seq, request.id))

    def remove(self, request_id: str) -> None:
        del self._waiting[request_id]
        self._compact()

    def head_key(self) -> tuple[Key, int]:
        """Where the first request stands against those of other queues. Queue not empty."""
        self._drop_gone(self._by_key)
        key, seq, _ = self._by_key[0]
        return key, seq

    def least_need(self) -> int:
        """The smallest KV need of any waiting request, in tokens. Queue not empty."""
        self._drop_gone(self._by_need)
        return self._by_need[0][0]

    def pop_first(self, fits: Callable[[Request], bool]) -> Request | None:
        """Take out the first request, in order, that fits; None when none does."""
        passed_over = []
        found = None
        while found is None:
            self._drop_gone(self._by_key)
            if not self._by_key:
                break
            entry = heapq.heappop(self._by_key)
            request = self._waiting[entry[2]][1]
            if fits(request):
                found = request
                del self._waiting[request.id]
            else:
                passed_over.append(entry)
        for entry in passed_over:
            heapq.heappush(self._by_key, entry)
        self._compact()
        return found

    def _is_gone(self, seq: int, request_id: str) -> bool:
        waiting = self._waiting.get(request_id)
        return waiting is None or waiting[0] != seq  # an id may have left and come back

    def _drop_gone(self, heap: list[tuple[Any, int, str]]) -> None:
        while heap and self._is_gone(heap[0][1], heap[0][2]):
            heapq.heappop(heap)

    def _compact(self) -> None:
        limit = 2 * len(self._waiting) + 64
        if len(self._by_key) > limit:
            self._by_key = [e for e in self._by_key if not self._is_gone(e[1], e[2])]
            heapq.heapify(self._by_key)
        if len(self._by_need) > limit:
            self._by_need = [e for e in self._by_need if not self._is_gone(e[1], e[2])]
            heapq.heapify(self._by_need)
