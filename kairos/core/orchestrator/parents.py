"""Which calls led to a call: as told where request ids travel, else from the agents' names."""

import heapq
from collections import defaultdict
from collections.abc import Collection, Iterator

import msgspec

from kairos.core.model import USER
from kairos.core.orchestrator.spans import Span

NAMESAKES = 8  # that are looked at: the latest finished


class ParentLink(msgspec.Struct, frozen=True, kw_only=True):
    """A call and those that led to it. `missing` were told of (a request's id, or an agent's
    name), but no call is known that they could be."""

    span: Span
    parents: tuple[str, ...] = ()
    named: str | None = None  # the parent, where it was found by the upstream's name
    rivals: tuple[str, ...] = ()  # namesakes of it that could be the parent too, by their times
    missing: tuple[str, ...] = ()


def link(spans: Collection[Span], skew_us: int) -> Iterator[ParentLink]:
    """The calls of a workflow, parents first, else by time, each with what led to it. O(n log n).

    Ids are believed, whatever the clocks say. Without ids (kairos paper, 4.2) the parent is the
    upstream agent's call that finished latest before this one started, by clocks that may disagree
    by `skew_us`. One that failed or was cancelled is taken only if there is no other. A rival, of
    the last `NAMESAKES`, finished before too and led to no call of this agent yet (ours).
    """
    placed: set[str] = set()
    names = _Names(skew_us)
    for span in _parents_first(spans):
        if span.parent_ids:
            told = dict.fromkeys(span.parent_ids)
            found = ParentLink(
                span=span,
                parents=tuple(parent for parent in told if parent in placed),
                missing=tuple(parent for parent in told if parent not in placed),
            )
        elif span.upstream is None or span.upstream == USER:
            found = ParentLink(span=span)
        else:
            found = names.parent(span, span.upstream)
        placed.add(span.id)
        names.add(found)
        yield found


def _parents_first(spans: Collection[Span]) -> Iterator[Span]:
    """By time, but none before a parent that it tells of. Where the told parents lead in a circle,
    which only a mistaken client says, the earliest of those left goes before its parents."""
    by_id = {span.id: span for span in spans}
    waits_for: dict[str, int] = {}
    told_by: defaultdict[str, list[str]] = defaultdict(list)
    for span in spans:
        parents = {parent for parent in span.parent_ids if parent in by_id}
        waits_for[span.id] = len(parents)
        for parent in parents:
            told_by[parent].append(span.id)
    by_time = sorted((span.started_at, span.finished_at, span.id) for span in spans)
    ready = [entry for entry in by_time if not waits_for[entry[2]]]  # sorted, so a heap
    circles = iter(by_time)
    done: set[str] = set()
    while len(done) < len(by_id):
        span = by_id[(heapq.heappop(ready) if ready else next(circles))[2]]
        if span.id in done:
            continue
        done.add(span.id)
        yield span
        for child in told_by[span.id]:
            waits_for[child] -= 1
            if not waits_for[child]:
                entry = by_id[child]
                heapq.heappush(ready, (entry.started_at, entry.finished_at, child))


class _Names:
    """Finds parents by name. Calls without ids are asked for and added in order of start."""

    def __init__(self, skew_us: int) -> None:
        self._skew_us = skew_us
        self._running: list[tuple[int, int, str]] = []  # heap: finished_at, started_at, id
        self._finished: defaultdict[str, list[str]] = defaultdict(list)  # of each agent, in order
        self._spans: dict[str, Span] = {}
        self._led_to: set[tuple[str, str]] = set()  # a call, and the agent of one that follows

    def add(self, found: ParentLink) -> None:
        span = found.span
        self._spans[span.id] = span
        self._led_to.update((parent, span.agent) for parent in found.parents)
        heapq.heappush(self._running, (span.finished_at, span.started_at, span.id))

    def parent(self, span: Span, upstream: str) -> ParentLink:
        while self._running and self._running[0][0] <= span.started_at + self._skew_us:
            ended = self._spans[heapq.heappop(self._running)[2]]
            self._finished[ended.agent].append(ended.id)
        namesakes = self._finished[upstream][-NAMESAKES:]
        if not namesakes:
            return ParentLink(span=span, missing=(upstream,))
        named = max(namesakes, key=self._likely)
        rivals = tuple(call for call in namesakes if call != named and self._open(call, span.agent))
        return ParentLink(span=span, parents=(named,), named=named, rivals=rivals)

    def _likely(self, call: str) -> tuple[bool, int, int, str]:
        span = self._spans[call]
        return span.outcome == "finished", span.finished_at, span.started_at, call

    def _open(self, call: str, agent: str) -> bool:
        return self._spans[call].outcome == "finished" and (call, agent) not in self._led_to
