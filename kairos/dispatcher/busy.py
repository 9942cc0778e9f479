"""Which instances take nothing more at the moment: no sequence is free, or prompts under way take
the budget of a step (`max_num_batched_tokens`). A call more would only wait inside the engine,
where nothing can go before it any more. Ours."""

from collections.abc import Sequence

from kairos.dispatcher.prompts_under_way import PromptsUnderWay
from kairos.model import Instance

_NONE: Sequence[Instance] = ()


class BusyInstances:
    """Told of each change. To ask costs O(instances whose prompts take a budget)."""

    def __init__(self, prompts: PromptsUnderWay) -> None:
        self._prompts = prompts
        self._full: set[str] = set()  # ids of those without a free sequence
        self._strained: dict[str, Instance] = {}  # of others: all their prompts take a budget
        # What was split last: of which instances, which were busy, and both parts.
        self._whole, self._ids = _NONE, frozenset[str]()
        self._parts = _NONE, _NONE

    def changed(self, instance: Instance, running: int) -> None:
        self.forget(instance.id)
        budget = instance.max_num_batched_tokens
        if running >= instance.max_num_seqs:
            self._full.add(instance.id)
        elif budget is not None and self._prompts.tokens(instance.id) >= budget:
            self._strained[instance.id] = instance

    def forget(self, instance_id: str) -> None:
        self._full.discard(instance_id)
        self._strained.pop(instance_id, None)

    def ids(self, at: int) -> set[str]:
        if not self._strained:
            return self._full
        return self._full.union([i.id for i in self._strained.values() if self.is_spent(i, at)])

    def is_spent(self, instance: Instance, at: int) -> bool:
        """The budget of a step."""
        budget = instance.max_num_batched_tokens
        return budget is not None and self._prompts.computing(instance.id, at)[0] >= budget

    def split(
        self, instances: Sequence[Instance], at: int
    ) -> tuple[Sequence[Instance], Sequence[Instance]]:
        """Those that take more, and those that are busy; the very same while both are."""
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
