"""Busy instances, which can take no more calls at the moment. Not in the paper.

An instance is busy if no sequence is free, or if prompts under way use up the budget of a step
(`max_num_batched_tokens`). One more call would only wait inside the engine, where its order can no
longer be changed.
"""

from collections.abc import Sequence, Set
from heapq import heappop, heappush

from kairos.core.dispatcher.prompts_under_way import PromptsUnderWay
from kairos.core.model import Instance

_NONE: Sequence[Instance] = ()


class BusyInstances:
    """Set of busy instances, updated on each change.

    A query costs O(log n) for each instance that changed since the last one, and for each prompt on
    a busy instance that is since assumed to be computed.
    """

    def __init__(self, prompts: PromptsUnderWay) -> None:
        self._prompts = prompts
        self._full: set[str] = set()  # ids of instances without a free sequence
        self._budgets: dict[str, int] = {}  # of instances that report one
        self._busy: set[str] = set()  # busy ids at the last query; outdated for ids in `_unsure`
        self._unsure: set[str] = set()
        self._ends: list[tuple[float, str]] = []  # a heap: when a budget may be free again
        self._ends_at: dict[str, float] = {}  # the latest entry of each instance in it
        # The last result of `split`: its instances, the busy ids, and both parts.
        self._whole, self._ids = _NONE, frozenset[str]()
        self._parts = _NONE, _NONE

    def changed(self, instance: Instance, running: int) -> None:
        if running >= instance.max_num_seqs:
            self._full.add(instance.id)
        else:
            self._full.discard(instance.id)
        if instance.max_num_batched_tokens is None:
            self._budgets.pop(instance.id, None)
        else:
            self._budgets[instance.id] = instance.max_num_batched_tokens
        self._unsure.add(instance.id)

    def forget(self, instance_id: str) -> None:
        self._full.discard(instance_id)
        self._budgets.pop(instance_id, None)
        self._unsure.add(instance_id)

    def ids(self, at: int) -> Set[str]:
        unsure, ends = self._unsure, self._ends
        while ends and ends[0][0] <= at:
            ended_at, instance_id = heappop(ends)
            if self._ends_at.get(instance_id) == ended_at:
                del self._ends_at[instance_id]
            unsure.add(instance_id)
        unsure.update(self._prompts.changed)
        self._prompts.changed.clear()
        for instance_id in unsure:
            self._look_at(instance_id, at)
        unsure.clear()
        return self._busy

    def _look_at(self, instance_id: str, at: int) -> None:
        is_busy = instance_id in self._full
        budget = self._budgets.get(instance_id)
        if not is_busy and budget is not None and self._prompts.tokens(instance_id) >= budget:
            tokens, until = self._prompts.computing(instance_id, at)
            is_busy = tokens >= budget
            if is_busy and self._ends_at.get(instance_id) != until:
                self._ends_at[instance_id] = until
                heappush(self._ends, (until, instance_id))
        (self._busy.add if is_busy else self._busy.discard)(instance_id)

    def is_spent(self, instance: Instance, at: int) -> bool:
        """Return whether prompts under way use up the instance's budget of a step."""
        budget = instance.max_num_batched_tokens
        return budget is not None and self._prompts.computing(instance.id, at)[0] >= budget

    def split(
        self, instances: Sequence[Instance], at: int
    ) -> tuple[Sequence[Instance], Sequence[Instance]]:
        """Return the available and the busy instances; identical lists while nothing changes."""
        ids = self.ids(at)
        if not ids:
            return instances, _NONE
        if instances is not self._whole or ids != self._ids:
            self._whole, self._ids = instances, frozenset(ids)
            self._parts = (
                [each for each in instances if each.id not in ids],
                [each for each in instances if each.id in ids],
            )
        return self._parts
