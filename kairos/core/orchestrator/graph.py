"""Call graph of a workflow: parents, callers and parallel stages (kairos paper, 4.2)."""

from collections.abc import Collection, Mapping
from typing import NamedTuple

import msgspec

from kairos.core.learnt import Sighting
from kairos.core.orchestrator.joins import KnownJoins, branch_ends, place
from kairos.core.orchestrator.parents import link
from kairos.core.orchestrator.spans import Span, parallel_groups


class Node(msgspec.Struct, frozen=True, kw_only=True):
    """A call in its workflow."""

    span: Span  # of the last attempt
    attempts: int  # number of attempts seen
    # The call under which it is placed. For a call with one parent: the parent. For a join: the
    # nearest common ancestor of its parents, in a later stage than theirs. None: no known parent.
    caller: str | None
    parents: tuple[str, ...]
    named: str | None  # the parent found by the upstream's name, if the call carried no parent ids
    ambiguous: bool  # found by name, and other or further parents are possible
    missing: tuple[str, ...]  # declared parents (ids or upstream's name) that match no known call
    staged_at: int  # start time used to order it among its caller's children; see `joins.Place`
    branch_finished_at: int  # latest end among itself and all calls under it


class CallGraph:
    """Collector of one workflow's spans, in any order, that builds the call graph on demand.

    Adding a span is O(1). The first query after that rebuilds the graph of n calls in O(n log n),
    without recursion. So if the graph is queried once per workflow, after its end, a span costs
    O(log n).
    """

    __slots__ = ("_attempts", "_known", "_recovered", "_skew_us", "_spans")

    def __init__(self, *, skew_us: int = 0, known: KnownJoins | None = None) -> None:
        """Create a graph without spans.

        `skew_us`: maximum clock difference between two hosts that report spans. `known`: the joins
        learnt for the workflow's app; None if nothing was learnt.
        """
        self._skew_us = skew_us
        self._known = known
        self._spans: dict[str, Span] = {}
        self._attempts: dict[str, set[int]] = {}  # of calls that were reported more than once
        self._recovered: _Recovered | None = None

    def __len__(self) -> int:
        return len(self._spans)

    def add(self, span: Span) -> None:
        """Add a span, keeping the latest attempt at each call; a repeated attempt is ignored."""
        known = self._spans.setdefault(span.id, span)
        if known is not span:
            self._attempts.setdefault(span.id, {known.attempt}).add(span.attempt)
            if known.attempt < span.attempt:
                self._spans[span.id] = span
        self._recovered = None

    @property
    def nodes(self) -> Mapping[str, Node]:
        """Return all calls by id, parents first."""
        return self._graph().nodes

    def sightings(self) -> list[Sighting]:
        """Return the observations of possible joins, for learning."""
        return self._graph().sightings

    def children(self, call: str | None) -> tuple[str, ...]:
        """Return the calls placed under a call; for None, the calls without a caller.

        Raises:
            KeyError: the call does not exist.
        """
        return tuple(self._graph().children[call])

    def stages(self, call: str | None) -> list[list[str]]:
        """Return the children of a call in stages, in order; calls of one stage ran in parallel.

        A child stands for its whole branch: itself and all calls under it. A stage begins after all
        branches of the previous stage ended. So two parallel branches A -> B -> F and A -> C -> G
        form one stage, even if only F and G overlap.
        """
        nodes = self.nodes
        branches = [
            _Branch(child, nodes[child].staged_at, nodes[child].branch_finished_at)
            for child in self.children(call)
        ]
        groups = parallel_groups(branches, self._skew_us)
        # Sort by real start: a join comes after the calls it joins, however early its stage begins.
        return [
            sorted((branch.call for branch in group), key=lambda call: nodes[call].span.started_at)
            for group in groups
        ]

    def _graph(self) -> "_Recovered":
        if self._recovered is None:
            self._recovered = _recover(
                self._spans.values(), self._attempts, self._skew_us, self._known
            )
        return self._recovered


class _Branch(NamedTuple):
    call: str
    started_at: int
    finished_at: int


class _Recovered(NamedTuple):
    nodes: dict[str, Node]
    children: dict[str | None, list[str]]
    sightings: list[Sighting]


def _recover(
    spans: Collection[Span],
    attempts: Mapping[str, set[int]],
    skew_us: int,
    known: KnownJoins | None,
) -> _Recovered:
    places, sightings = place(list(link(spans, skew_us)), skew_us, known)
    ends = branch_ends((x.link.span.id, x.link.span.finished_at, (x.caller,)) for x in places)
    nodes: dict[str, Node] = {}
    children: dict[str | None, list[str]] = {None: []}
    for found, caller, parents, ambiguous, staged_at in places:
        call = found.span.id
        children[call] = []
        children[caller].append(call)
        nodes[call] = Node(
            span=found.span,
            attempts=len(attempts.get(call, (found.span.attempt,))),
            caller=caller,
            parents=parents,
            named=found.named,
            ambiguous=ambiguous,
            missing=found.missing,
            staged_at=staged_at,
            branch_finished_at=ends[call],
        )
    return _Recovered(nodes, children, sightings)
