"""Protocol of placements: choosing the instance for a request, or none yet."""

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import Protocol

from kairos.core.model import Instance, Request


class Placement(Protocol):
    """Chooses instances by the ledger, which also has the bookings of other balancers.

    The default methods suit a placement that forecasts nothing and judges one request at a time.
    """

    @abstractmethod
    def choose(
        self, request: Request, instances: Sequence[Instance], busy: Sequence[Instance], at: int
    ) -> Instance | None:
        """Return one of `instances` for the request; None: it has to wait.

        Args:
            request: the request.
            instances: instances that could hold the request and take more now, in order of joining.
            busy: instances that could hold it but take nothing now; the request may wait for one.
            at: current time.
        """

    def refused(
        self,
        requests: Sequence[Request],  # noqa: ARG002
        instances: Sequence[Instance],  # noqa: ARG002
        busy: Sequence[Instance],  # noqa: ARG002
        at: int,  # noqa: ARG002
    ) -> tuple[int, Instance | None] | None:
        """Judge several requests in one step, if the placement can.

        Returns:
            How many requests, counted from the first, `choose` would refuse, and its choice for the
                next one, if known. None: requests must be judged one at a time.
        """
        return None

    @abstractmethod
    def headroom(self, instances: Sequence[Instance], at: int) -> float:
        """Return the maximum of tokens that a request may use at once and still fit."""

    def reserve(
        self,
        request: Request,  # noqa: ARG002
        instances: Sequence[Instance],  # noqa: ARG002
        at: int,  # noqa: ARG002
    ) -> None:
        """Reserve for a request that has to wait: later choices must not delay it.

        By default nothing is reserved, and only the bound on waiting protects it.
        """
        return

    def forget_reservation(self) -> None:
        return

    def expected_back(self, at: int) -> Iterator[str]:  # noqa: ARG002
        """Return ids of requests that memory is retained for, first in order first."""
        return iter(())
