"""How much KV memory a call will need, and for how long."""

from typing import Protocol

from kairos.learnt import Distribution
from kairos.model import Request


class Lengths(Protocol):
    """What was learnt of how long calls are."""

    def completion_tokens(self, request: Request) -> Distribution | None:
        """Of the answers to calls like this one; None while nothing is known."""

    def call_us(self, request: Request) -> int:
        """Expected execution latency of the call, at least 1."""
