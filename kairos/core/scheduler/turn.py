"""Whose turn it is, and what a queue asks of instances to say so."""

from collections.abc import Iterator, Sequence
from typing import Final, Protocol

from kairos.core.events import Reason
from kairos.core.model import Request


class InstanceRoom(Protocol):
    """What is free of the instances that could serve the queue."""

    def fits(self, request: Request) -> bool:
        """Whether the request can be placed now."""

    def refused(self, requests: Sequence[Request]) -> int:
        """How many of these, from the first on, are known not to fit. It is quicker to ask for all
        of them than for each; those that follow may not fit either."""

    def expected_back(self) -> Iterator[str]:
        """Ids of requests that memory is kept for, the first first."""

    def reserve(self, request: Request) -> None:
        """What fits from now on does not delay the request, which does not fit now."""

    def keep_for(self, request: Request) -> bool:
        """Leave alone, from now on, the instances that could serve the request once they are free;
        return whether any other is left."""


class Turn:
    """Whose turn it is, and why."""

    def __init__(self, request: Request, reason: Reason) -> None:
        self.request: Final = request
        self.reason: Final = reason
