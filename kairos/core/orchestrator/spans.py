"""Execution spans of a workflow's calls, and which of them ran in parallel (kairos paper, 4.2)."""

from collections.abc import Iterable
from typing import Literal, Protocol, TypeVar

import msgspec

Outcome = Literal["finished", "failed", "cancelled"]


class Span(msgspec.Struct, frozen=True, kw_only=True):
    """Attempt at a call: its agent, its parents, and when an instance worked on it."""

    id: str  # of the request
    agent: str
    upstream: str | None = None  # the agent whose message led to this call
    parent_ids: tuple[str, ...] = ()  # the requests whose answers led to it; a join has several
    attempt: int = 1
    started_at: int  # when it was dispatched; time in the queue is load, not work
    finished_at: int
    queued_us: int = 0  # time in the queue before `started_at`
    outcome: Outcome = "finished"

    @property
    def execution_us(self) -> int:
        return max(0, self.finished_at - self.started_at)  # a host may set its clock back


class Timed(Protocol):
    @property
    def started_at(self) -> int: ...

    @property
    def finished_at(self) -> int: ...


S = TypeVar("S", bound=Timed)


def parallel_groups(spans: Iterable[S], skew_us: int = 0) -> list[list[S]]:
    """Return groups of spans that overlap, directly or through others, in order of time.

    A sweep line, O(n log n). Touching spans are sequential. So are spans that overlap by at most
    `skew_us`, the maximum clock difference between two hosts: sequential spans stay sequential, and
    spans that overlap by more than twice the skew stay parallel. To that end (not in the paper)
    every span is shortened by half the skew at both ends. A span shorter than the skew becomes the
    instant in its middle: parallel to spans that surround it, sequential to spans that begin or end
    there.
    """
    groups: list[list[S]] = []
    busy_until = 0
    for span in sorted(spans, key=lambda span: _certain(span, skew_us)):
        begin, end = _certain(span, skew_us)
        if groups and begin < busy_until:
            groups[-1].append(span)
            busy_until = max(busy_until, end)
        else:
            groups.append([span])
            busy_until = end
    return groups


def _certain(span: Timed, skew_us: int) -> tuple[int, int]:
    """Return the interval in which the span ran by all clocks, doubled to keep halves integral."""
    begin, end = 2 * span.started_at + skew_us, 2 * span.finished_at - skew_us
    if begin > end:
        begin = end = span.started_at + span.finished_at
    return begin, end
