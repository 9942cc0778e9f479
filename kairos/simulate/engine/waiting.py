"""The queue of an engine."""

import heapq
from typing import Literal

from kairos.simulate.engine.sequence import Sequence


class Waiting:
    """Waiting sequences in order of arrival, or by priority first.

    A preempted sequence keeps its place. In order of arrival that is before all that never ran, as
    in vLLM, which puts it in front: the newest is preempted first, and resumes last.
    """

    def __init__(self, scheduling: Literal["fcfs", "priority"]) -> None:
        self._by_priority = scheduling == "priority"
        self._heap: list[tuple[int, int, Sequence]] = []  # (priority, number, sequence)

    def __len__(self) -> int:
        return len(self._heap)

    def push(self, sequence: Sequence) -> None:
        priority = sequence.call.priority if self._by_priority else 0
        heapq.heappush(self._heap, (priority, sequence.number, sequence))

    def first(self) -> Sequence:
        return self._heap[0][2]

    def pop(self) -> None:
        heapq.heappop(self._heap)

    def remove(self, sequence: Sequence) -> None:
        self._heap = [entry for entry in self._heap if entry[2] is not sequence]
        heapq.heapify(self._heap)

    def victim(self, running: list[Sequence]) -> Sequence:
        """Return the sequence to preempt: the one that would be last here, or came last."""
        if self._by_priority:
            return max(running, key=lambda each: (each.call.priority, each.number))
        return running[-1]
