"""Routes of an application's nodes: phases of calls on instances, tools on CPU workers.

After the router of Asgar, Nguyen and Katti (2025), section 3.2, for kinds of nodes. Prompts are
served by instances of both phases or of prefill, answers by instances of both or of decode. Tools
run on CPU workers; people are outside. How many executions are under way at once follows from
Little's law.
"""

from collections.abc import Mapping, Sequence

import msgspec

from kairos.capacity.lowering import WorkGraph, WorkKind, WorkNode
from kairos.capacity.pool import InstanceKind, Pool
from kairos.capacity.queueing import in_system
from kairos.capacity.serving import Phases

CPU_WORKERS, OUTSIDE = "cpu workers", "outside"
_SERVE = {
    WorkKind.PREFILL: (Phases.BOTH, Phases.PREFILL),
    WorkKind.DECODE: (Phases.BOTH, Phases.DECODE),
}


class NodePlace(msgspec.Struct, frozen=True, kw_only=True):
    """A node's place."""

    node: WorkNode
    shares: Mapping[str, float]  # kind of instance, or `CPU_WORKERS` or `OUTSIDE` -> of executions
    at_once: float | None = None  # executions under way in the mean; None: the instances say


def node_places(
    graph: WorkGraph, pool: Pool, kinds: Sequence[InstanceKind], workflows_per_s: float
) -> tuple[NodePlace, ...]:
    return tuple(_place(node, pool, kinds, workflows_per_s) for node in graph.nodes)


def _place(
    node: WorkNode, pool: Pool, kinds: Sequence[InstanceKind], workflows_per_s: float
) -> NodePlace:
    if (phases := _SERVE.get(node.kind)) is not None:
        able = {kind.name for kind in kinds if kind.phases in phases}
        routes = pool.routes[node.agent]
        return NodePlace(
            node=node, shares={name: share for name, share in routes.items() if name in able}
        )
    where = OUTSIDE if node.kind is WorkKind.HUMAN else CPU_WORKERS
    at_once = in_system(workflows_per_s * node.runs, node.wait_s)
    return NodePlace(node=node, shares={where: 1.0}, at_once=at_once)
