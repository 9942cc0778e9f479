"""Placements: which instance gets a request, or none yet. These go by what instances hold now."""

from collections.abc import Callable, Sequence
from typing import ClassVar

from kairos.core.core_names import named
from kairos.core.dispatcher.ledger import Ledger
from kairos.core.dispatcher.placement import Placement
from kairos.core.dispatcher.slots import TimeSlot
from kairos.core.dispatcher.survival_packing import SurvivalPacking
from kairos.core.model import Instance, Request

THRESHOLD = 0.95  # of the KV memory, in use now: `least-kv`


class ByMemoryNow(Placement):
    """Goes by what instances hold now, as an engine does when it admits a call."""

    threshold: ClassVar = 1.0  # of the KV memory that may be in use then

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def free_tokens(self, instance: Instance, at: int) -> float:
        if instance.kv_tokens is None or not self._ledger.running(instance.id):
            return float("inf")
        return self.threshold * instance.kv_tokens - self._ledger.held_tokens(instance.id, at)

    def with_room(self, request: Request, instances: Sequence[Instance], at: int) -> list[Instance]:
        in_use = self._ledger.prefixes.in_use(request)
        needed = {i.id: request.prompt_tokens - in_use.get(i.id, 0) for i in instances}
        return [i for i in instances if needed[i.id] <= self.free_tokens(i, at)]

    def headroom(self, instances: Sequence[Instance], at: int) -> float:
        return max(self.free_tokens(instance, at) for instance in instances)


class RoundRobin(ByMemoryNow):
    """The next in turn of those that would admit it at once, whatever it grows to: what Parrot and
    Ayo do, with the queue in front of the engines instead of inside them."""

    def choose(
        self,
        request: Request,
        instances: Sequence[Instance],
        busy: Sequence[Instance],  # noqa: ARG002
        at: int,
    ) -> Instance | None:
        return min(
            self.with_room(request, instances, at),
            key=lambda instance: self._ledger.last_booking(instance.id),
            default=None,
        )


class LeastKv(ByMemoryNow):
    """The instance with the smallest share of its KV memory in use, then the fewest requests; none
    of which more than `THRESHOLD` would be in use."""

    threshold: ClassVar = THRESHOLD

    def choose(
        self,
        request: Request,
        instances: Sequence[Instance],
        busy: Sequence[Instance],  # noqa: ARG002
        at: int,
    ) -> Instance | None:
        return min(
            self.with_room(request, instances, at),
            key=lambda instance: self.load(instance, at),
            default=None,
        )

    def load(self, instance: Instance, at: int) -> tuple[float, int]:
        held = self._ledger.held_tokens(instance.id, at)
        return held / (instance.kv_tokens or 1), self._ledger.running(instance.id)


PLACEMENTS: dict[str, Callable[[Ledger], Placement]] = {
    "round-robin": RoundRobin,
    "least-kv": LeastKv,
    "time-slot": TimeSlot,
    "kairos": SurvivalPacking,
}


def placement_named(name: str) -> Callable[[Ledger], Placement]:
    """Raises SetupError: there is none of that name, and none can be imported by it."""
    return named("placement", name, PLACEMENTS)
