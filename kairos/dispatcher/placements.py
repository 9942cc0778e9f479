"""Placements: which instance gets a request, or none yet. These go by what instances hold now."""

from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import ClassVar

from kairos.dispatcher.demand import can_hold
from kairos.dispatcher.ledger import Ledger
from kairos.dispatcher.placement import Placement
from kairos.dispatcher.slots import TimeSlot
from kairos.dispatcher.survival_packing import SurvivalPacking
from kairos.model import Instance, Request

THRESHOLD = 0.95  # of the KV memory, in use now: `least-kv`, `power-of-two`


class _Now(Placement):
    """Goes by what instances hold now, as an engine does when it admits a call."""

    threshold: ClassVar = 1.0  # of the KV memory that may be in use then

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def _free_tokens(self, instance: Instance, at: int) -> float:
        if instance.kv_tokens is None or not self._ledger.running(instance.id):
            return float("inf")
        return self.threshold * instance.kv_tokens - self._ledger.held_tokens(instance.id, at)

    def _with_room(
        self, request: Request, instances: Sequence[Instance], at: int
    ) -> list[Instance]:
        in_use = self._ledger.prefixes.in_use(request)
        needed = {i.id: request.prompt_tokens - in_use.get(i.id, 0) for i in instances}
        return [i for i in instances if needed[i.id] <= self._free_tokens(i, at)]

    def headroom(self, instances: Sequence[Instance], at: int) -> float:
        return max(self._free_tokens(instance, at) for instance in instances)


class RoundRobin(_Now):
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
            self._with_room(request, instances, at),
            key=lambda instance: self._ledger.last_booking(instance.id),
            default=None,
        )


class LeastKv(_Now):
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
        with_room = self._with_room(request, instances, at)
        return min(with_room, key=lambda instance: self._load(instance, at), default=None)

    def _load(self, instance: Instance, at: int) -> tuple[float, int]:
        held = self._ledger.held_tokens(instance.id, at)
        return held / (instance.kv_tokens or 1), self._ledger.running(instance.id)


class PowerOfTwo(LeastKv):
    """The less loaded of two, which a hash of the request's id picks (Mitzenmacher, 2001)."""

    def choose(
        self,
        request: Request,
        instances: Sequence[Instance],
        busy: Sequence[Instance],  # noqa: ARG002
        at: int,
    ) -> Instance | None:
        with_room = self._with_room(request, instances, at)
        if len(with_room) > 2:
            digest = blake2b(request.id.encode(), digest_size=8).digest()
            first, step = divmod(int.from_bytes(digest), len(with_room) - 1)
            first %= len(with_room)
            with_room = [with_room[first], with_room[(first + step + 1) % len(with_room)]]
        return min(with_room, key=lambda instance: self._load(instance, at), default=None)


class Affinity(_Now):
    """For comparison: where most of the prompt is cached, whatever else runs there; what nobody has
    goes to the instance with most memory free."""

    def choose(
        self,
        request: Request,
        instances: Sequence[Instance],
        busy: Sequence[Instance],  # noqa: ARG002
        at: int,
    ) -> Instance | None:
        here = self._ledger.instances
        cached = {
            instance_id: tokens
            for instance_id, tokens in self._ledger.prefixes.match(request).items()
            if can_hold(here[instance_id], request)
        }
        warm = [i for i in instances if cached.get(i.id, 0) == max(cached.values(), default=0) > 0]
        if cached and not warm:
            return None  # it is full
        return min(
            self._with_room(request, warm or instances, at),
            key=lambda instance: self._ledger.held_tokens(instance.id, at),
            default=None,
        )


PLACEMENTS: dict[str, Callable[[Ledger], Placement]] = {
    "round-robin": RoundRobin,
    "least-kv": LeastKv,
    "power-of-two": PowerOfTwo,
    "affinity": Affinity,
    "time-slot": TimeSlot,
    "kairos": SurvivalPacking,
}
