"""Registry of placements, and placements that use only the present memory use."""

from collections.abc import Callable, Sequence
from typing import ClassVar

from kairos.core.core_names import named
from kairos.core.dispatcher.ledger import Ledger
from kairos.core.dispatcher.placement import Placement
from kairos.core.dispatcher.slots import TimeSlot
from kairos.core.dispatcher.survival_packing import SurvivalPacking
from kairos.core.model import Instance, Request

THRESHOLD = 0.95  # share of the KV memory that may be in use, for `least-kv`


class ByMemoryNow(Placement):
    """Placement by the memory in use now, as engines admit calls."""

    threshold: ClassVar = 1.0  # share of the KV memory that may be in use after placement

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
    """The next in turn of the instances that would admit the request at once.

    Its later growth is ignored. This is what Parrot and Ayo do, with the queue in front of the
    engines instead of inside them.
    """

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
    """The instance with the smallest share of its KV memory in use, then the fewest requests.

    An instance whose use would exceed `THRESHOLD` is left out.
    """

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
    """Return the placement of this name.

    Raises:
        SetupError: the name is unknown, and nothing can be imported by it.
    """
    return named("placement", name, PLACEMENTS)
