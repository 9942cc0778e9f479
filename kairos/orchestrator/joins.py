"""Where calls sit: under what led to them; those that followed several calls are joins."""

from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from kairos.orchestrator.ancestry import Ancestry
from kairos.orchestrator.parents import ParentLink


class Place(NamedTuple):
    """`caller` is the call under which this one sits, None: under none."""

    link: ParentLink
    caller: str | None
    parents: tuple[str, ...]
    ambiguous: bool


class _Group(msgspec.Struct):
    """Calls under one caller whose executions overlap."""

    calls: list[str]
    busy_until: int
    last: list[tuple[int, str]]  # end and call of the two branches that ended last
    parents: tuple[str, ...] = ()  # the calls, once a join has followed


def place(links: list[ParentLink], skew_us: int) -> list[Place]:
    """Find every call's place, in the order of `links`: parents first. O(n log n).

    A join of told parents sits under the nearest call above them all. A call whose parent was
    found by name is taken for a join of the parallel group that the parent is in, if it started
    after all branches of the group ended. That is a guess, since it may follow its parent alone,
    so it is marked as ambiguous, and made with care (ours): the group is of calls that overlap
    themselves, and a branch that goes on later has not ended. Of two parallel chains, neither joins
    the other.
    """
    placing = _Placing(links, skew_us)
    return [placing.place(found) for found in links]


def branch_ends(spans: Iterable[tuple[str, int, tuple[str | None, ...]]]) -> dict[str, int]:
    """When the last call of each call's branch ended: `spans` are id, end and parents of calls,
    parents first."""
    in_order = list(spans)
    ends = {call: end for call, end, _ in in_order}
    for call, _, parents in reversed(in_order):
        for parent in parents:
            if parent is not None:
                ends[parent] = max(ends[parent], ends[call])
    return ends


class _Placing:
    def __init__(self, links: list[ParentLink], skew_us: int) -> None:
        self._skew_us = skew_us
        self._tree = Ancestry()
        self._ends = branch_ends((x.span.id, x.span.finished_at, x.parents) for x in links)
        # As far as nothing that may be a join is in it.
        self._sure_ends = {found.span.id: found.span.finished_at for found in links}
        for found in links:
            for parent in found.parents if found.named is None else ():
                self._follow(parent, found.span.id)
        self._groups: dict[str, _Group] = {}  # of each call
        self._latest: dict[str | None, _Group] = {}  # under each caller

    def place(self, found: ParentLink) -> Place:
        call, caller, parents = found.span.id, self._tree.meeting(found.parents), found.parents
        ambiguous = any(not self._tree.is_above(rival, found.named) for rival in found.rivals)
        if found.named is not None:
            group = self._groups[found.named]
            if self._joins(found, group, found.named):
                group.parents = group.parents or tuple(group.calls)
                caller, parents, ambiguous = self._tree.caller(found.named), group.parents, True
            else:
                self._follow(found.named, call)
        self._tree.add(call, caller)
        self._enter_group(found, caller)
        return Place(found, caller, parents, ambiguous)

    def _joins(self, found: ParentLink, group: _Group, named: str) -> bool:
        """Every branch of the group has ended, but for what may be a join like this call."""
        if len(group.calls) == 1:
            return False
        others_end = max(end for end, call in group.last if call != named)
        return max(self._sure_ends[named], others_end) <= found.span.started_at + self._skew_us

    def _follow(self, parent: str, call: str) -> None:
        self._sure_ends[parent] = max(self._sure_ends[parent], self._ends[call])

    def _enter_group(self, found: ParentLink, caller: str | None) -> None:
        span = found.span
        group = self._latest.get(caller)
        if group is None or group.busy_until - span.started_at <= self._skew_us:
            group = self._latest[caller] = _Group([], span.finished_at, [])
        group.calls.append(span.id)
        group.busy_until = max(group.busy_until, span.finished_at)
        group.last = sorted([*group.last, (self._ends[span.id], span.id)])[-2:]
        self._groups[span.id] = group
