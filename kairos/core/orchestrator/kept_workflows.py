"""The workflows that the orchestrator remembers, of all tenants within one bound.

Where there is no room, the tenant that holds most gives way (`kairos/core/shared_lru.py`).
"""

from collections.abc import Iterator
from itertools import count, islice

from kairos.core.orchestrator.workflow import OpenedWorkflow
from kairos.core.shared_lru import Holdings, SharedLru
from kairos.core.workflow_tracker import WorkflowKey


class KeptWorkflows:
    """A bounded number of workflows, with a bound on the bytes of their calls together."""

    def __init__(self, most: int, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._workflows: SharedLru[WorkflowKey, OpenedWorkflow] = SharedLru(most)
        self._calls, self._bytes = Holdings(), Holdings()
        self.get, self.touch = self._workflows.get, self._workflows.touch

    def __len__(self) -> int:
        return len(self._workflows)

    def all(self) -> list[OpenedWorkflow]:
        """In no order."""
        return self._workflows.unordered()

    def oldest(self) -> OpenedWorkflow:
        """The one longest untouched. There is one."""
        return self._workflows.oldest()[1]

    def put(self, workflow: OpenedWorkflow) -> int:
        """In place of one with its key. Returns how many gave way."""
        self.remove(workflow.key)
        tenant, _ = workflow.key
        gone = self._workflows.put(tenant, workflow.key, workflow)
        for _, each in gone:
            self._forget(each)
        return len(gone) + self.called(workflow, len(workflow.calls), workflow.held_bytes)

    def called(self, workflow: OpenedWorkflow, calls: int, size_bytes: int) -> int:
        """Note that it has more calls. Return how many were evicted; it may be one of them."""
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
        """Of those that are known whole each tenant's, or of one that has more than its part of so
        many calls, each so many of them."""
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
        """If it is here."""
        workflow = self._workflows.remove(key[0], key)
        if workflow is not None:
            self._forget(workflow)


class LearningQueue:
    """Workflows that have ended and wait to be learnt from, in this order.

    Of too many, or too large ones, the newest are dropped: of the tenant that has most, and where
    nobody has more, the one that comes.
    """

    def __init__(self, most: int, most_bytes: int) -> None:
        self._most, self._most_bytes, self._held_bytes = most, most_bytes, 0
        self._workflows: dict[int, OpenedWorkflow] = {}
        self._of: dict[str, list[int]] = {}  # by tenant, alike
        self._holdings = Holdings()
        self._numbers = count()

    def __len__(self) -> int:
        return len(self._workflows)

    def add(self, workflow: OpenedWorkflow) -> bool:
        """Returns whether there was room for it and all others."""
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

    def take(self) -> list[OpenedWorkflow]:
        """All; none waits any more."""
        taken, self._held_bytes = [*self._workflows.values()], 0
        self._workflows, self._of, self._holdings = {}, {}, Holdings()
        return taken
