"""Workflows that the orchestrator keeps in memory, with one bound for all tenants.

When the bound is reached, the tenant that holds most loses its oldest
(`kairos/core/shared_lru.py`).
"""

from collections.abc import Iterator
from itertools import count, islice

from kairos.core.orchestrator.workflow import OpenedWorkflow
from kairos.core.shared_lru import Holdings, SharedLru
from kairos.core.workflow_tracker import WorkflowKey


class KeptWorkflows:
    """Store of workflows, bounded by their number and by the total bytes of their calls."""

    def __init__(self, most: int, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._workflows: SharedLru[WorkflowKey, OpenedWorkflow] = SharedLru(most)
        self._calls, self._bytes = Holdings(), Holdings()
        self.get, self.touch = self._workflows.get, self._workflows.touch

    def __len__(self) -> int:
        return len(self._workflows)

    def all(self) -> list[OpenedWorkflow]:
        """Return all workflows, in no particular order."""
        return self._workflows.unordered()

    def oldest(self) -> OpenedWorkflow:
        """Return the workflow that was untouched for longest. The store must not be empty."""
        return self._workflows.oldest()[1]

    def put(self, workflow: OpenedWorkflow) -> int:
        """Store a workflow, replacing any with the same key, and return the number evicted."""
        self.remove(workflow.key)
        tenant, _ = workflow.key
        gone = self._workflows.put(tenant, workflow.key, workflow)
        for _, each in gone:
            self._forget(each)
        return len(gone) + self.count_calls(workflow, len(workflow.calls), workflow.held_bytes)

    def count_calls(self, workflow: OpenedWorkflow, calls: int, size_bytes: int) -> int:
        """Record that a workflow has more calls, and return the number of workflows evicted.

        The workflow itself may be among them.
        """
        tenant, gone = workflow.key[0], 0
        self._calls.add(tenant, calls)
        self._bytes.add(tenant, size_bytes)
        while self._bytes.total > self._most_bytes:
            _, oldest = self._workflows.pop_oldest(self._bytes.gives_way(tenant))
            self._forget(oldest)
            gone += 1
        return gone

    def _forget(self, workflow: OpenedWorkflow) -> None:
        tenant = workflow.key[0]
        self._calls.add(tenant, -len(workflow.calls))
        self._bytes.add(tenant, -workflow.held_bytes)

    def some(self, most_calls: int) -> Iterator[OpenedWorkflow]:
        """Yield a sample of workflows with at most `most_calls` calls in total.

        Only workflows seen from their start are used. The calls are divided evenly among tenants; a
        tenant with more than its part is sampled at regular steps.
        """
        tenants = sorted(self._calls, key=self._calls.of)
        for number, tenant in enumerate(tenants):
            part, taken = most_calls // (len(tenants) - number), 0
            step = 1 + self._calls.of(tenant) // max(1, part)
            for key in islice(self._workflows.of(tenant), 0, None, step):
                workflow = self._workflows.get(key)
                assert workflow is not None
                if workflow.is_whole and taken + len(workflow.calls) <= part:
                    taken += len(workflow.calls)
                    yield workflow
            most_calls -= taken

    def remove(self, key: WorkflowKey) -> None:
        """Remove a workflow; a no-op if it is not stored."""
        workflow = self._workflows.remove(key[0], key)
        if workflow is not None:
            self._forget(workflow)


class LearningQueue:
    """Ended workflows waiting to be learnt from, in order of their end.

    If there are too many, or their calls take too many bytes, the newest of the tenant that holds
    most are dropped. If no tenant holds more than the newcomer's, the newcomer is dropped.
    """

    def __init__(self, most: int, most_bytes: int) -> None:
        self._most, self._most_bytes, self._held_bytes = most, most_bytes, 0
        self._workflows: dict[int, OpenedWorkflow] = {}
        self._of: dict[str, list[int]] = {}  # keys of `_workflows` by tenant, in the same order
        self._holdings = Holdings()
        self._numbers = count()

    def __len__(self) -> int:
        return len(self._workflows)

    def add(self, workflow: OpenedWorkflow) -> bool:
        """Add a workflow. Return False if it, or another in its place, had to be dropped."""
        tenant = workflow.key[0]
        has_room = self._has_room(workflow)
        while not self._has_room(workflow):
            giver = self._holdings.gives_way(tenant) if self._workflows else tenant
            if giver == tenant:
                return False
            dropped = self._workflows.pop(self._of[giver].pop())
            self._held_bytes -= dropped.held_bytes
            self._holdings.add(giver, -1 - dropped.held_bytes)
        self._held_bytes += workflow.held_bytes
        number = next(self._numbers)
        self._workflows[number] = workflow
        self._of.setdefault(tenant, []).append(number)
        self._holdings.add(tenant, 1 + workflow.held_bytes)
        return has_room

    def _has_room(self, workflow: OpenedWorkflow) -> bool:
        held_bytes = self._held_bytes + workflow.held_bytes
        return len(self._workflows) < self._most and held_bytes <= self._most_bytes

    def take_all(self) -> list[OpenedWorkflow]:
        """Return all waiting workflows, and empty the queue."""
        taken, self._held_bytes = [*self._workflows.values()], 0
        self._workflows, self._of, self._holdings = {}, {}, Holdings()
        return taken
