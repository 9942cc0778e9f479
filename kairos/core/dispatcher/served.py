"""Instances that can be booked, the models they serve, and their speed.

Instances that only compute prompts are used for calls only if the model has no other; otherwise
`prefill_choice.py` assigns prompts to them.
"""

import math

from msgspec.structs import replace

from kairos.core.dispatcher.speed import Speed, StepPace
from kairos.core.model import Instance


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

    def join(self, instance: Instance) -> None:
        """Add an instance, or replace its limits."""
        if instance.id not in self.by_id:
            self.speeds[instance.id] = Speed(self._pace(instance))
        self.by_id[instance.id] = instance
        self._renew()

    def leave(self, instance_id: str) -> None:
        self.by_id.pop(instance_id, None)
        self._renew()

    def forget(self, instance_id: str) -> None:
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
