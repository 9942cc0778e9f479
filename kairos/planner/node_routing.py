"""Where each node of an application runs: LLM calls on instances of the pool, all else on CPUs.

What the router of Asgar, Nguyen and Katti (2025), section 3.2, does with kinds of nodes. LLM calls
go as the plan has them: prompts to instances that serve both phases or prefill, answers to those
that serve both or decode. Retrieval, tools, memory and plain computing go to CPU workers;
embeddings and rerankers too, since the pool's instances have another model. People are outside.
How many executions are under way at once follows from Little's law.
"""

from collections.abc import Mapping, Sequence

import msgspec

from kairos.planner.pool import InstanceKind, Pool
from kairos.planner.queueing import in_system
from kairos.planner.serving import Phases
from kairos.planner.work_graph import LLM_KINDS, WorkGraph, WorkKind, WorkNode

CPU_WORKERS, OUTSIDE = "cpu workers", "outside"
_FIRST = {WorkKind.PREFILL: (Phases.BOTH, Phases.PREFILL), WorkKind.DECODE: ()}
_SECOND = {WorkKind.PREFILL: (), WorkKind.DECODE: (Phases.BOTH, Phases.DECODE)}


class NodePlace(msgspec.Struct, frozen=True, kw_only=True):
    """One node's."""

    node: str
    kind: WorkKind
    # Names of instance kinds: for the prompt, then for the answer; where these are the same, once.
    places: tuple[str, ...]
    at_once: float | None = None  # executions under way in the mean; None: the instances say


def node_places(
    graph: WorkGraph, pool: Pool, kinds: Sequence[InstanceKind], workflows_per_s: float
) -> tuple[NodePlace, ...]:
    """Of a graph without agents inside; the n-th call of an agent (`agent#n`) goes where its first
    goes. Of several kinds that share a node's calls, the one with most of them is named."""
    return tuple(_place(node, pool, kinds, workflows_per_s) for node in graph.nodes)


def _place(
    node: WorkNode, pool: Pool, kinds: Sequence[InstanceKind], workflows_per_s: float
) -> NodePlace:
    if node.kind in LLM_KINDS:
        name = node.name  # an agent's own may have a # in it
        shares = pool.routes[name if name in pool.routes else name.rpartition("#")[0]]
        first = _most(shares, kinds, _FIRST.get(node.kind, (Phases.BOTH, Phases.PREFILL)))
        second = _most(shares, kinds, _SECOND.get(node.kind, (Phases.BOTH, Phases.DECODE)))
        whole = first if first in _named(kinds, (Phases.BOTH,)) else None
        places = (whole,) if whole is not None else (first, second)
        return NodePlace(
            node=node.name,
            kind=node.kind,
            places=tuple(each for each in places if each is not None),
        )
    where = OUTSIDE if node.kind is WorkKind.HUMAN else CPU_WORKERS
    lasts_s = node.work.wait_s + node.work.core_s
    at_once = in_system(workflows_per_s * node.runs, lasts_s)
    return NodePlace(node=node.name, kind=node.kind, places=(where,), at_once=at_once)


def _most(
    shares: Mapping[str, float], kinds: Sequence[InstanceKind], phases: Sequence[Phases]
) -> str | None:
    names = _named(kinds, phases)
    return max((each for each in shares if each in names), key=lambda n: shares[n], default=None)


def _named(kinds: Sequence[InstanceKind], phases: Sequence[Phases]) -> set[str]:
    return {kind.name for kind in kinds if kind.phases in phases}
