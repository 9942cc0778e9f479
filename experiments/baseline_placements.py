"""Placements that Kairos is compared with: `--placement experiments.baseline_placements:Affinity`.

They inherit from no class of Kairos, so that they serve with a compiled brain, too.
"""

from collections.abc import Callable, Iterator, Sequence
from hashlib import blake2b

from kairos.core import PLACEMENTS as OWN
from kairos.core import Instance, Ledger, Placement, Request, can_hold
from kairos.core.dispatcher.placements import LeastKv, RoundRobin


class _Now:
    """A placement by what instances hold now, with the room that another one sees."""

    def __init__(self, ledger: Ledger, sees: LeastKv | RoundRobin) -> None:
        self._ledger, self._sees = ledger, sees

    def headroom(self, instances: Sequence[Instance], at: int) -> float:
        return self._sees.headroom(instances, at)

    def refused(
        self,
        requests: Sequence[Request],  # noqa: ARG002
        instances: Sequence[Instance],  # noqa: ARG002
        busy: Sequence[Instance],  # noqa: ARG002
        at: int,  # noqa: ARG002
    ) -> tuple[int, Instance | None] | None:
        return None

    def reserve(self, request: Request, instances: Sequence[Instance], at: int) -> None:
        """Do nothing: only the bound on waiting protects a request that waits."""

    def forget_reservation(self) -> None:
        return

    def expected_back(self, at: int) -> Iterator[str]:  # noqa: ARG002
        return iter(())


class PowerOfTwo(_Now):
    """The less loaded of two, which a hash of the request's id picks (Mitzenmacher, 2001)."""

    def __init__(self, ledger: Ledger) -> None:
        self._least = LeastKv(ledger)
        super().__init__(ledger, self._least)

    def choose(
        self,
        request: Request,
        instances: Sequence[Instance],
        busy: Sequence[Instance],  # noqa: ARG002
        at: int,
    ) -> Instance | None:
        with_room = self._least.with_room(request, instances, at)
        if len(with_room) > 2:
            digest = blake2b(request.id.encode(), digest_size=8).digest()
            first, step = divmod(int.from_bytes(digest), len(with_room) - 1)
            first %= len(with_room)
            with_room = [with_room[first], with_room[(first + step + 1) % len(with_room)]]
        return min(with_room, key=lambda instance: self._least.load(instance, at), default=None)


class Affinity(_Now):
    """The instance with most of the prompt cached, without regard to its load.

    A prompt that nobody has goes to the instance with most memory free.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._turns = RoundRobin(ledger)
        super().__init__(ledger, self._turns)

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
            self._turns.with_room(request, warm or instances, at),
            key=lambda instance: self._ledger.held_tokens(instance.id, at),
            default=None,
        )


PLACEMENTS: dict[str, Callable[[Ledger], Placement]] = {
    **OWN,
    "power-of-two": PowerOfTwo,
    "affinity": Affinity,
}
