"""The queue's next request, and the queries on instances needed to choose it."""

from collections.abc import Iterator, Sequence
from typing import Final, Protocol

from kairos.core.events import Reason
from kairos.core.model import Request


class InstanceRoom(Protocol):
    """Free capacity of the instances that could serve the queue."""

    def fits(self, request: Request) -> bool:
        """Return whether the request can be placed now."""

    def refused(self, requests: Sequence[Request]) -> int:
        """Return how many of these, counted from the first, are known not to fit.

        One query is quicker than one per request. The requests after those may not fit either.
        """

    def expected_back(self) -> Iterator[str]:
        """Yield ids of requests that memory is retained for, first in order first."""

    def reserve(self, request: Request) -> None:
        """Reserve for a request that does not fit now: later placements must not delay it."""

    def keep_for(self, request: Request) -> bool:
        """Exclude the instances that could serve the request once they are free.

        Returns whether any other instance is left.
        """


class Turn:
    """The request to dispatch next, and the reason."""

    def __init__(self, request: Request, reason: Reason) -> None:
        self.request: Final = request
        self.reason: Final = reason
