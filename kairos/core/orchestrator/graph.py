"""A workflow's calls as a graph: who led to whom, what ran in parallel: kairos paper, 4.2."""

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
    attempts: int  # that were seen
    # Under which call it sits: its parent. A join has several, and sits under the nearest call
    # above them all, in a later stage than they. None: nothing that is known led to it.
    caller: str | None
    parents: tuple[str, ...]
    named: str | None  # the parent that the upstream's name led to, where no ids travelled
    ambiguous: bool  # by its name it could have had other parents, or more
    missing: tuple[str, ...]  # parents' ids, or the upstream's name, of which no call is known
    staged_at: int  # when it begins among the calls of its caller; see `joins.Place`
    branch_finished_at: int  # when the last of the calls that sit under it, or itself, ended


class CallGraph:
    """Collects the spans of one workflow, in any order, and recovers its graph when asked.

    Adding a span is O(1). The first question after that recovers the graph of n calls in
    O(n log n), without recursion; so asked once per workflow, when it has ended, a span costs
    O(log n).
    """

    __slots__ = ("_attempts", "_known", "_recovered", "_skew_us", "_spans")

    def __init__(self, *, skew_us: int = 0, known: KnownJoins | None = None) -> None:
        """Begin without spans.

        Args:
            skew_us: by how much the clocks of two hosts that report spans may disagree.
            known: the joins of the workflow's app; None: none is known.
        """
        self._skew_us = skew_us
        self._known = known
        self._spans: dict[str, Span] = {}
        self._attempts: dict[str, set[int]] = {}  # of calls that were told more than once
        self._recovered: _Recovered | None = None

    def __len__(self) -> int:
        return len(self._spans)

    def add(self, span: Span) -> None:
        """The last attempt at a call is its span. An attempt that is told again changes nothing."""
        known = self._spans.setdefault(span.id, span)
        if known is not span:
            self._attempts.setdefault(span.id, {known.attempt}).add(span.attempt)
            if known.attempt < span.attempt:
                self._spans[span.id] = span
        self._recovered = None

    @property
    def nodes(self) -> Mapping[str, Node]:
        """All calls by id, parents first."""
        return self._graph().nodes

    def sightings(self) -> list[Sighting]:
        """Return the sightings of calls that may be joins, for learning."""
        return self._graph().sightings

    def children(self, call: str | None) -> tuple[str, ...]:
        """The calls that sit under a call, or, for None, under no call.

        Raises:
            KeyError: there is no such call.
        """
        return tuple(self._graph().children[call])

    def stages(self, call: str | None) -> list[list[str]]:
        """The children of a call, in order: those in one stage ran in parallel.

        A child stands for its branch, all that sits under it included. A stage begins after all
        branches of the stage before it ended, so A -> B -> F beside A -> C -> G is one stage, even
        if only F and G overlap.
        """
        nodes = self.nodes
        branches = [
            _Branch(child, nodes[child].staged_at, nodes[child].branch_finished_at)
            for child in self.children(call)
        ]
        groups = parallel_groups(branches, self._skew_us)
        # A join comes behind what it joins, however early its stage begins.
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
