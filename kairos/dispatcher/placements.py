"""Placements: which of the instances with room gets a request."""

from collections.abc import Callable, Sequence
from typing import Protocol

from kairos.dispatcher.demand import Lengths
from kairos.dispatcher.ledger import Ledger
from kairos.model import Instance, Request


class Placement(Protocol):
    def choose(self, request: Request, candidates: Sequence[Instance]) -> Instance:
        """Pick one of `candidates`: not empty, each with room for the request, in join order.

        Pure: what it goes by is in the ledger, where another balancer's choices stand too.
        """


class RoundRobin:
    """The next instance in turn, whatever runs there: what Parrot and Ayo do."""

    def __init__(self, ledger: Ledger, lengths: Lengths) -> None:  # noqa: ARG002
        self._ledger = ledger

    def choose(self, request: Request, candidates: Sequence[Instance]) -> Instance:  # noqa: ARG002
        return min(candidates, key=lambda instance: self._ledger.last_booking(instance.id))


class LeastKv:
    """The instance with the smallest share of its KV memory booked, then the fewest requests."""

    def __init__(self, ledger: Ledger, lengths: Lengths) -> None:  # noqa: ARG002
        self._ledger = ledger

    def choose(self, request: Request, candidates: Sequence[Instance]) -> Instance:  # noqa: ARG002
        def load(instance: Instance) -> tuple[float, int]:
            booked = self._ledger.booked_tokens(instance.id)
            return booked / (instance.kv_tokens or 1), self._ledger.running(instance.id)

        return min(candidates, key=load)


PLACEMENTS: dict[str, Callable[[Ledger, Lengths], Placement]] = {
    "round-robin": RoundRobin,
    "least-kv": LeastKv,
}
