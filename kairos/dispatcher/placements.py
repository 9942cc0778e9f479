"""Placements: which of the instances with room gets a request."""

from collections.abc import Callable, Sequence
from typing import Protocol

from kairos.dispatcher.ledger import Ledger
from kairos.model import Instance, Request


class Placement(Protocol):
    def choose(self, request: Request, candidates: Sequence[Instance], ledger: Ledger) -> Instance:
        """Pick one of `candidates`: not empty, each with room for the request, in join order.

        Pure: what it goes by is in the ledger, where another balancer's choices stand too.
        """


class RoundRobin:
    """The next instance in turn, whatever runs there: what Parrot and Ayo do."""

    def choose(
        self,
        request: Request,  # noqa: ARG002
        candidates: Sequence[Instance],
        ledger: Ledger,
    ) -> Instance:
        return min(candidates, key=lambda instance: ledger.last_booking(instance.id))


class LeastKv:
    """The instance with the smallest share of its KV memory booked, then the fewest requests."""

    def choose(
        self,
        request: Request,  # noqa: ARG002
        candidates: Sequence[Instance],
        ledger: Ledger,
    ) -> Instance:
        def load(instance: Instance) -> tuple[float, int]:
            booked = ledger.booked_tokens(instance.id)
            return booked / (instance.kv_tokens or 1), ledger.running(instance.id)

        return min(candidates, key=load)


PLACEMENTS: dict[str, Callable[[], Placement]] = {"round-robin": RoundRobin, "least-kv": LeastKv}
