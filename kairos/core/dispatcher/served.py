"""Instances that can be booked: the models they serve, their speed, and which of them are busy.

Instances that only compute prompts are used for calls only if the model has no other; otherwise
`prefill_choice.py` assigns prompts to them.

A busy instance can take no more calls at the moment (not in the paper). It is busy if no sequence
is free, or if prompts under way use up the budget of a step (`max_num_batched_tokens`). One more
call would only wait inside the engine, where its order can no longer be changed.
"""

import math
from collections.abc import Sequence, Set
from heapq import heappop, heappush

from msgspec.structs import replace

from kairos.core.dispatcher.prompts_under_way import PromptsUnderWay
from kairos.core.dispatcher.speed import Speed, StepPace
from kairos.core.model import Instance

_NONE: Sequence[Instance] = ()


class ServedInstances:
    """Instances in order of cost, if reported, then of joining: the first of equals is chosen.

    An instance that leaves while its calls still run retains its speed until `forget`.
    """

    def __init__(self) -> None:
        self.by_id: dict[str, Instance] = {}
        self.smallest = math.inf  # smallest known KV memory, in tokens
        self.speeds: dict[str, Speed] = {}
        self._paces: dict[Instance, StepPace] = {}  # by kind: an instance without its id
        self._serving: dict[str | None, list[Instance]] = {}  # cache by model
        self._prefilling: dict[str | None, list[Instance]] = {}
        self.has_pairs = False  # some instances only generate answers, others compute prompts

    def add_instance(self, instance: Instance) -> None:
        """Add an instance, or replace its limits."""
        if instance.id not in self.by_id:
            self.speeds[instance.id] = Speed(self._pace(instance))
        self.by_id[instance.id] = instance
        self._renew()

    def remove_instance(self, instance_id: str) -> None:
        self.by_id.pop(instance_id, None)
        self._renew()

    def forget_speed(self, instance_id: str) -> None:
        self.speeds.pop(instance_id, None)

    def _renew(self) -> None:
        self._serving.clear()
        self._prefilling.clear()
        self.has_pairs = {"prefill", "decode"} <= {each.phase for each in self.by_id.values()}
        sizes = [each.kv_tokens for each in self.by_id.values() if each.kv_tokens is not None]
        self.smallest = min(sizes, default=math.inf)

    def _pace(self, instance: Instance) -> StepPace:
        """Return the pace of the instance's kind, and forget kinds without instances."""
        like = replace(instance, id="")
        known = {replace(each, id="") for each in self.by_id.values()}
        self._paces = {
            kind: pace for kind, pace in self._paces.items() if kind in known or kind == like
        }
        return self._paces.setdefault(like, StepPace(instance.token_us))

    def serving(self, model: str | None) -> list[Instance]:
        """Return the instances to which calls of the model (None: any) can be sent.

        Instances for prompts only are included only if the model has no other.
        """
        found = self._serving.get(model)
        if found is None:
            everyone = self._by_cost(model)
            found = [each for each in everyone if each.phase != "prefill"] or everyone
            if found:  # do not cache unknown names, which clients could send without end
                self._serving[model] = found
        return found

    def prefilling(self, model: str | None) -> list[Instance]:
        """Return the instances that compute prompts of the model for others."""
        found = self._prefilling.get(model)
        if found is None:
            found = [each for each in self._by_cost(model) if each.phase == "prefill"]
            if found:
                self._prefilling[model] = found
        return found

    def _by_cost(self, model: str | None) -> list[Instance]:
        found = [i for i in self.by_id.values() if model is None or model in i.models]
        return sorted(found, key=lambda i: math.inf if i.usd_per_hour is None else i.usd_per_hour)

    def models(self) -> list[str]:
        """Return all models served at the moment, sorted."""
        return sorted({model for instance in self.by_id.values() for model in instance.models})


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

    def update_instance(self, instance: Instance, running: int) -> None:
        if running >= instance.max_num_seqs:
            self._full.add(instance.id)
        else:
            self._full.discard(instance.id)
        if instance.max_num_batched_tokens is None:
            self._budgets.pop(instance.id, None)
        else:
            self._budgets[instance.id] = instance.max_num_batched_tokens
        self._unsure.add(instance.id)

    def forget_instance(self, instance_id: str) -> None:
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
