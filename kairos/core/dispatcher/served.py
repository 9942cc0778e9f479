"""The instances that can be booked, which model each serves, and how quick each is.

Instances that compute prompts alone are no places for calls while there are others for the model:
those that generate answers are, and a prompt's place is for `prefill_choice.py`.
"""

import math

from msgspec.structs import replace

from kairos.core.dispatcher.speed import Speed, StepPace
from kairos.core.model import Instance


class ServedInstances:
    """Instances by what they cost, as far as that is told, and in the order in which they joined:
    where they are alike, the first is chosen. One whose calls still run when it leaves keeps its
    speed until `forget`."""

    def __init__(self) -> None:
        self.by_id: dict[str, Instance] = {}
        self.smallest = math.inf  # KV tokens, of those whose memory is known
        self.speeds: dict[str, Speed] = {}
        self._paces: dict[Instance, StepPace] = {}  # by kind: an instance without its id
        self._serving: dict[str | None, list[Instance]] = {}  # by model, as asked
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
        """What is known of instances like this one. Kinds that are gone are forgotten."""
        like = replace(instance, id="")
        known = {replace(each, id="") for each in self.by_id.values()}
        self._paces = {
            kind: pace for kind, pace in self._paces.items() if kind in known or kind == like
        }
        return self._paces.setdefault(like, StepPace(instance.token_us))

    def serving(self, model: str | None) -> list[Instance]:
        """Instances that calls of the model (None: any) can be sent to. Those for prompts alone
        are among them only where there are no others."""
        found = self._serving.get(model)
        if found is None:
            everyone = self._by_cost(model)
            found = [each for each in everyone if each.phase != "prefill"] or everyone
            if found:  # else anybody could ask for names without end
                self._serving[model] = found
        return found

    def prefilling(self, model: str | None) -> list[Instance]:
        """Instances that compute prompts of the model for others."""
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
        """All models that are served at the moment."""
        return sorted({model for instance in self.by_id.values() for model in instance.models})
