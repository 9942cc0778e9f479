"""Execution spans of a workflow's calls, and which of them ran in parallel: kairos paper, 4.2."""

from collections.abc import Iterable
from typing import Literal, Protocol, TypeVar

import msgspec

Outcome = Literal["finished", "failed", "cancelled"]


class Span(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt at a call: who made it, what led to it, and when an instance worked on it."""

    id: str  # of the request
    agent: str
    upstream: str | None = None  # the agent whose message led to this call
    parent_ids: tuple[str, ...] = ()  # the requests whose answers led to it; several are a join
    attempt: int = 1
    started_at: int  # dispatched; time in the queue is load, not work
    finished_at: int
    queued_us: int = 0  # waited for before `started_at`
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
    """The groups of spans that overlap, directly or through others, in order of time.

    A sweep line, O(n log n). Touching spans are sequential. So are spans that overlap by no more
    than `skew_us`, by which the clocks of two hosts may disagree: what was sequential stays so,
    and what overlapped by more than twice the skew stays parallel. To that end (ours) every span
    loses half the skew at both ends. One shorter than the skew, or of no length, is the instant in
    its middle: parallel to what goes on around it, sequential to what begins or ends there.
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
    """When the span was going on by all clocks, doubled, so that halves stay whole numbers."""
    begin, end = 2 * span.started_at + skew_us, 2 * span.finished_at - skew_us
    if begin > end:
        begin = end = span.started_at + span.finished_at
    return begin, end
