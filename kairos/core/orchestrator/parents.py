"""Find the parents of each call, from declared request ids or else from agents' names."""

import heapq
from collections import defaultdict
from collections.abc import Collection, Iterator

import msgspec

from kairos.core.model import USER
from kairos.core.orchestrator.spans import Span

NAMESAKES = 8  # candidates considered for each name: the latest finished


class ParentLink(msgspec.Struct, frozen=True, kw_only=True):
    """A call with its parents.

    `missing` are declared parents (request ids, or the upstream agent's name) that match no known
    call.
    """

    span: Span
    parents: tuple[str, ...] = ()
    named: str | None = None  # the parent, if it was found by the upstream's name
    rivals: tuple[str, ...] = ()  # other calls of that name that could be the parent, by time
    missing: tuple[str, ...] = ()


def link(spans: Collection[Span], skew_us: int) -> Iterator[ParentLink]:
    """Yield each call of a workflow with its parents: parents first, else by time. O(n log n).

    Declared ids are believed even if the clocks contradict them. Without ids (kairos paper, 4.2)
    the parent is the upstream agent's call that finished latest before this one started, by clocks
    that may differ by `skew_us`. A failed or cancelled call is chosen only for lack of another. Not
    in the paper: a rival is one of the last `NAMESAKES` calls that also finished before and led to
    no call of this agent yet.
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
    """Yield spans in order of time, but never before a declared parent.

    If declared parents form a cycle, which only a faulty client reports, the earliest remaining
    span is yielded before its parents.
    """
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
    """Index of calls by agent name. Look calls up and add them in order of start."""

    def __init__(self, skew_us: int) -> None:
        self._skew_us = skew_us
        self._running: list[tuple[int, int, str]] = []  # heap: finished_at, started_at, id
        self._finished: defaultdict[str, list[str]] = defaultdict(list)  # of each agent, in order
        self._spans: dict[str, Span] = {}
        self._led_to: set[tuple[str, str]] = set()  # a call, and the agent of a call it led to

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
