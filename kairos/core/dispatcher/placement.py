"""What a placement is: it says which instance gets a request, or none yet."""

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import Protocol

from kairos.core.model import Instance, Request


class Placement(Protocol):
    """Goes by what is in the ledger, where another balancer's choices stand too. What has a body
    here is what one does that knows nothing of the future, and looks at one request at a time."""

    @abstractmethod
    def choose(
        self, request: Request, instances: Sequence[Instance], busy: Sequence[Instance], at: int
    ) -> Instance | None:
        """One of `instances`, which could hold the request, take more now, and are in the order in
        which they joined; None: it is to wait, maybe for one that is `busy` now."""

    def refused(
        self,
        requests: Sequence[Request],  # noqa: ARG002
        instances: Sequence[Instance],  # noqa: ARG002
        busy: Sequence[Instance],  # noqa: ARG002
        at: int,  # noqa: ARG002
    ) -> tuple[int, Instance | None] | None:
        """Of how many of the requests, from the first on, it is known that `choose` finds no
        instance, and which it finds for the next, if that is known; None: it looks at one at a
        time."""
        return None

    @abstractmethod
    def headroom(self, instances: Sequence[Instance], at: int) -> float:
        """No request fits of which more tokens would have to be held at once than this."""

    def reserve(
        self,
        request: Request,  # noqa: ARG002
        instances: Sequence[Instance],  # noqa: ARG002
        at: int,  # noqa: ARG002
    ) -> None:
        """What is chosen from now on must not delay this request, which has to wait. By default
        only the bound on waiting protects who waits."""
        return

    def forget_reservation(self) -> None:
        return

    def expected_back(self, at: int) -> Iterator[str]:  # noqa: ARG002
        """Ids of requests that memory is kept for, the first first: nobody else could use it."""
        return iter(())
