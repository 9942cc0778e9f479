"""Policies: the order in which waiting requests are served.

A policy is a sort key, not a queue, so that a new one is about ten lines and one heap serves all.
"""

from collections.abc import Callable
from typing import Protocol

from kairos.model import Request

Key = tuple[float, ...]


class Policy(Protocol):
    """Orders waiting requests, smallest key first.

    `key` must be pure: the queue asks once, when the request arrives.
    """

    def key(self, request: Request) -> Key: ...


class Fcfs:
    """First come, first served: what vLLM does when nobody tells it better."""

    def key(self, request: Request) -> Key:
        return (request.arrived_at,)


POLICIES: dict[str, Callable[[], Policy]] = {"fcfs": Fcfs}
