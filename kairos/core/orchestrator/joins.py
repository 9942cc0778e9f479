"""Placement of calls under the calls that led to them; a call with several parents is a join."""

import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import NamedTuple, Protocol

from kairos.core.learnt import POOLED_AGENT, Sighting
from kairos.core.orchestrator.learnt_joins import SURE, SURE_BY_NAMES, UNKNOWN, Verdict
from kairos.core.orchestrator.parents import ParentLink

# Bounds per call: nearest groups above it whose branches it may join; groups in which its end is
# recorded; agents told apart in a group (the others are pooled); parents listed.
_LEVELS, _NOTED, _AGENTS, _PARENTS = 4, 16, 8, 128


class KnownJoins(Protocol):
    """Learnt joins of an app."""

    def verdict(self, agent: str, caller: str | None) -> Verdict:
        """Return the odds that calls of the agent join branches under calls of the caller."""


class Place(NamedTuple):
    """Position of a call in the graph; without a known parent, `caller` is empty.

    A join of some branches of a group is in the same stage as the other branches, even if these
    ended before it began. `staged_at` is therefore the start of that stage.
    """

    link: ParentLink
    caller: str | None
    parents: tuple[str, ...]
    ambiguous: bool
    staged_at: int  # start time used to order it among its caller's children


class Placed(NamedTuple):
    """Places of all calls, parents first, and the observations of possible joins."""

    places: list[Place]
    sightings: list[Sighting]


def place(links: Sequence[ParentLink], skew_us: int, known: KnownJoins | None) -> Placed:
    """Place every call, in the order of `links` (parents first), in O(n log n).

    A join whose parents were declared is placed under their nearest common ancestor. A call whose
    parent was found by name is placed under that parent. The exception (not in the paper, see
    `learnt_joins.py`): if calls like it are known to join branches that have all ended when it
    arrives, it is placed above those branches. While the evidence is undecided, the place is marked
    as ambiguous. Branches are begun by calls that overlap each other.
    """
    placing = _Placing(links, skew_us, known)
    places = [placing.place(found) for found in links]
    return Placed(places, placing.sightings)


def branch_ends(spans: Iterable[tuple[str, int, tuple[str | None, ...]]]) -> dict[str, int]:
    """Return for each call, given as (id, end, parents), the end of the last call of its branch.

    Parents come first.
    """
    in_order = list(spans)
    ends = {call: end for call, end, _ in in_order}
    for call, _, parents in reversed(in_order):
        for parent in parents:
            if parent is not None:
                ends[parent] = max(ends[parent], ends[call])
    return ends


class _Branch(NamedTuple):
    """The part of a branch seen so far: latest end, first call, and the call that ends last."""

    end: int
    first: str
    last: str


class _Group:
    """Calls under one caller whose executions overlap; each begins a branch."""

    __slots__ = ("busy_until", "calls", "latest")

    def __init__(self, busy_until: int) -> None:
        self.calls: list[str] = []
        self.busy_until = busy_until
        # The two branches that end last, by the agent of the branch's first call.
        self.latest: dict[str, list[_Branch]] = {}

    def note(self, agent: str, branch: _Branch) -> None:
        if agent not in self.latest and len(self.latest) >= _AGENTS:
            agent = POOLED_AGENT
        others = [each for each in self.latest.get(agent, ()) if each.first != branch.first]
        self.latest[agent] = sorted([branch, *others], reverse=True)[:2]

    def beside(self, first: str) -> Iterator[tuple[str, _Branch]]:
        """Yield, per agent, the branch that ends last, except the branch begun by `first`."""
        for agent, branches in self.latest.items():
            for branch in branches:
                if branch.first != first:
                    yield agent, branch
                    break


class _Join(NamedTuple):
    """A known join: its caller, and the last calls of the branches it joins."""

    caller: str | None
    parents: tuple[str, ...]
    beside: str | None  # a call of the group, if the join leaves out some of the branches


class _Placing:
    def __init__(self, links: Sequence[ParentLink], skew_us: int, known: KnownJoins | None) -> None:
        self.sightings: list[Sighting] = []
        self._skew_us, self._known = skew_us, known
        self._tree = Ancestry()
        self._agents = {found.span.id: found.span.agent for found in links}
        self._ends = {found.span.id: found.span.finished_at for found in links}
        self._starts = {found.span.id: found.span.started_at for found in links}
        self._called = Counter(found.span.agent for found in links)
        self._named = Counter(
            (found.span.agent, self._agents[found.named])
            for found in links
            if found.named is not None
        )
        self._groups: dict[str, _Group] = {}  # of each call
        self._latest: dict[str | None, _Group] = {}  # under each caller
        # The nearest call above that shares its group with others.
        self._fork: dict[str, str | None] = {}
        self._branches: dict[str, _Branch] = {}  # of calls that share their group

    def place(self, found: ParentLink) -> Place:
        call, caller, parents = found.span.id, self._tree.meeting(found.parents), found.parents
        staged_at = found.span.started_at
        ambiguous = any(not self._tree.is_above(rival, found.named) for rival in found.rivals)
        if found.named is None and len(parents) > 1:
            staged_at = self._staged_with(found, caller)
        if found.named is not None:
            join, doubtful = self._joins(found, found.named)
            ambiguous = ambiguous or doubtful
            if join is not None:
                caller, parents = join.caller, join.parents
                if join.beside is not None:
                    staged_at = min(staged_at, self._starts[join.beside])
        self._tree.add(call, caller)
        self._enter_group(found, caller)
        return Place(found, caller, parents, ambiguous, staged_at)

    def _staged_with(self, found: ParentLink, caller: str | None) -> int:
        """Return the start of the stage of a join whose parents were declared.

        Branches that it does not join belong to the same stage, even if they ended before it began.
        """
        firsts: set[str] = set()
        for parent in found.parents:
            first: str | None = parent
            for _ in range(_NOTED):
                if first is None or self._tree.caller(first) == caller:
                    break
                first = self._tree.caller(first)
            if first is not None:
                firsts.add(first)
        begun = found.span.started_at
        for first in firsts:
            group = self._groups[first]
            if any(each not in firsts for each in group.calls):
                begun = min(begun, self._starts[first])
        return begun

    def _joins(self, found: ParentLink, named: str) -> tuple[_Join | None, bool]:
        """Return the known join, if any, and whether the call may be a join that is not known yet.

        Records what was observed in `sightings`.
        """
        span, named_end = found.span, self._ends[named]
        arrived_at = span.started_at - span.queued_us
        agent_of, ended = self._agents, arrived_at + self._skew_us
        choices = max(1.0, self._called[agent_of[named]] / self._named[span.agent, agent_of[named]])
        others: dict[str, _Branch] = {}
        join, doubtful, by_times = None, False, 0.0
        forks: list[str] = []
        for fork in self._forks(named):
            forks.append(fork)
            for agent, branch in self._groups[fork].beside(fork):
                others[agent] = max(others.get(agent, branch), branch)
            above = self._tree.caller(fork)
            caller = None if above is None else agent_of[above]
            ends = tuple((agent, each.end - named_end) for agent, each in others.items())
            self.sightings.append(
                Sighting(
                    agent=span.agent,
                    caller=caller,
                    after_us=arrived_at - named_end,
                    others=ends,
                    branch=agent_of[fork],
                    choices=math.log(choices),
                )
            )
            verdict = UNKNOWN if self._known is None else self._known.verdict(span.agent, caller)
            joined = [each for agent, each in others.items() if agent not in verdict.beside]
            if not joined or any(each.end > ended for each in (self._branches[fork], *joined)):
                continue
            odds = verdict.by_times - by_times + verdict.by_names  # against the best join so far
            if odds >= SURE or verdict.by_names >= SURE_BY_NAMES:
                parents = dict.fromkeys((named, *self._last_calls(forks, verdict.beside)))
                beside = fork if verdict.beside.intersection(self._groups[fork].latest) else None
                join = _Join(above, tuple(parents), beside)
                doubtful, by_times = False, max(0.0, verdict.by_times)
            elif odds > -SURE:
                doubtful = True
        return join, doubtful

    def _last_calls(self, forks: Iterable[str], beside: Collection[str]) -> Iterator[str]:
        """Yield the last call of each other branch, except branches that the given agents begin."""
        for fork in forks:
            for first in self._groups[fork].calls[-_PARENTS:]:
                if first != fork and self._agents[first] not in beside:
                    yield self._branches[first].last

    def _forks(self, call: str) -> Iterator[str]:
        """Yield the nearest calls, from `call` upwards, that share their group with other calls."""
        fork = call if len(self._groups[call].calls) > 1 else self._fork[call]
        for _ in range(_LEVELS):
            if fork is None:
                return
            yield fork
            fork = self._fork[fork]

    def _enter_group(self, found: ParentLink, caller: str | None) -> None:
        span = found.span
        group = self._latest.get(caller)
        if group is None or group.busy_until - span.started_at <= self._skew_us:
            group = self._latest[caller] = _Group(span.finished_at)
        group.calls.append(span.id)
        group.busy_until = max(group.busy_until, span.finished_at)
        self._groups[span.id] = group
        alone = caller is not None and len(self._groups[caller].calls) == 1
        self._fork[span.id] = self._fork[caller] if caller is not None and alone else caller
        self._note_end(span.id, span.finished_at)

    def _note_end(self, call: str, end: int) -> None:
        """Record the end of a call in its own branch and in the branches above it."""
        first: str | None = call
        for _ in range(_NOTED):
            if first is None:
                return
            known = self._branches.get(first)
            if known is not None and known.end >= end:
                return
            branch = self._branches[first] = _Branch(end, first, call)
            self._groups[first].note(self._agents[first], branch)
            first = self._fork[first]


class Ancestry:
    """A tree that grows at its leaves, with ancestor queries in O(log n).

    In addition to its caller, each call stores one ancestor further up (its jump), chosen so that
    any ancestor is reached in O(log n) jumps (E. Myers, "An applicative random-access stack",
    1983). None is the root, above all calls.
    """

    def __init__(self) -> None:
        self._depth: dict[str | None, int] = {None: 0}
        self._caller: dict[str | None, str | None] = {None: None}
        self._jump: dict[str | None, str | None] = {None: None}

    def add(self, call: str, caller: str | None) -> None:
        """Add a new call below `caller`: a call added before, or None for the root."""
        near = self._jump[caller]
        far = self._jump[near]
        even = self._depth[caller] - self._depth[near] == self._depth[near] - self._depth[far]
        self._depth[call] = self._depth[caller] + 1
        self._caller[call] = caller
        self._jump[call] = far if even else caller

    def caller(self, call: str) -> str | None:
        return self._caller[call]

    def is_above(self, upper: str | None, call: str | None) -> bool:
        """Return whether `upper` is the call itself or one of its ancestors."""
        return self._climb(call, self._depth[upper]) == upper

    def meeting(self, calls: tuple[str, ...]) -> str | None:
        """Return the caller under which to place a call that follows all of `calls`.

        Only the calls that no other of them follows count; the result is the lowest of their common
        ancestors or themselves. For a chain this is its last call, and without calls None.
        """
        deepest_first = sorted(calls, key=lambda call: -self._depth[call])
        meeting: str | None = deepest_first[0] if calls else None
        for call in deepest_first:
            if not self.is_above(call, meeting):
                meeting = self._nearest_above(call, meeting)
        return meeting

    def _nearest_above(self, one: str | None, other: str | None) -> str | None:
        one = self._climb(one, self._depth[other])
        other = self._climb(other, self._depth[one])
        while one != other:
            step = self._jump if self._jump[one] != self._jump[other] else self._caller
            one, other = step[one], step[other]
        return one

    def _climb(self, call: str | None, depth: int) -> str | None:
        """Return the ancestor at `depth`, or the call itself if its depth is at most that."""
        while self._depth[call] > depth:
            jump = self._jump[call]
            call = jump if self._depth[jump] >= depth else self._caller[call]
        return call
