"""An application as a typed graph of work, every annotation with its unit.

After Asgar, Nguyen and Katti (Efficient and Scalable Agentic AI with Heterogeneous Systems, 2025),
section 2.4: nodes are operations, or whole agents with a graph of their own; edges carry data.
Cycles are feedback edges, each with a bound on how often it is taken
(`experiments/hardware/unrolling.py`).
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum

import msgspec

from kairos.errors import SetupError

MAX_NODES = 20_000  # of a graph with all that is inside
MAX_DEPTH = 16  # of graphs inside of graphs
MAX_TIMES = 1_000  # that a feedback edge may be taken


class WorkKind(StrEnum):
    """What a node does, and so which hardware may do it."""

    LLM = "llm"  # both phases of a call
    PREFILL = "prefill"
    DECODE = "decode"
    EMBED = "embed"
    RERANK = "rerank"
    RETRIEVAL = "retrieval"
    TOOL = "tool"
    COMPUTE = "compute"  # on a CPU
    MEMORY = "memory"
    HUMAN = "human"
    AGENT = "agent"  # has a graph of its own inside


LLM_KINDS = (WorkKind.LLM, WorkKind.PREFILL, WorkKind.DECODE)
CPU_KINDS = (WorkKind.RETRIEVAL, WorkKind.TOOL, WorkKind.COMPUTE, WorkKind.MEMORY)


class Work(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one execution of a node asks of resources."""

    flop: float = 0.0
    memory_bytes: float = 0.0  # read and written
    network_bytes: float = 0.0  # to and from what is outside
    core_s: float = 0.0  # seconds of one CPU core
    wait_s: float = 0.0  # for what is outside: a person, another company's API

    def plus(self, other: "Work") -> "Work":
        mine, its = msgspec.structs.asdict(self), msgspec.structs.asdict(other)
        return Work(**{name: mine[name] + its[name] for name in mine})


class TokenCounts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Of one LLM call, in the mean."""

    prompt: float  # cached ones too
    answer: float = 0.0
    cached: float = 0.0  # of the prompt


class WorkNode(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: str
    kind: WorkKind
    work: Work = Work()  # beside what `tokens` ask of a model
    tokens: TokenCounts | None = None  # of LLM calls
    model: str | None = None  # of LLM calls, embeddings and rerankers; None: the plan's
    runs: float = 1.0  # executions per execution of the graph, in the mean
    inside: "WorkGraph | None" = None  # of agents


class WorkEdge(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the target needs of the source."""

    source: str
    target: str
    data_bytes: float = 0.0
    share: float = 1.0  # of the source's executions after which the target follows
    # A feedback edge leads back: it is taken at most so many times. None: it leads on.
    times: int | None = None


class WorkGraph(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    nodes: tuple[WorkNode, ...]
    edges: tuple[WorkEdge, ...] = ()

    def node(self, name: str) -> WorkNode:
        return next(node for node in self.nodes if node.name == name)

    def onward(self) -> tuple[WorkEdge, ...]:
        """The edges that are no feedback."""
        return tuple(edge for edge in self.edges if edge.times is None)


def predecessors(graph: WorkGraph) -> dict[str, list[WorkEdge]]:
    """The edges that lead on to each node; every node has an entry."""
    found: dict[str, list[WorkEdge]] = {node.name: [] for node in graph.nodes}
    for edge in graph.onward():
        found[edge.target].append(edge)
    return found


def order(graph: WorkGraph) -> tuple[str, ...]:
    """The nodes' names, each after all that lead on to it; otherwise as they are listed.

    Raises:
        SetupError: edges that are no feedback make a cycle, which is named.
    """
    waits = {name: len(edges) for name, edges in predecessors(graph).items()}
    after: defaultdict[str, list[str]] = defaultdict(list)
    for edge in graph.onward():
        after[edge.source].append(edge.target)
    ready = [name for name, count in waits.items() if not count]
    done: list[str] = []
    for name in ready:  # grows as it is gone through
        done.append(name)
        for target in after[name]:
            waits[target] -= 1
            if not waits[target]:
                ready.append(target)
    if len(done) < len(waits):
        left = sorted(set(waits) - set(done))
        raise SetupError(
            f"a cycle goes through {', '.join(left[:8])}: give one of its edges `times`, how often "
            "it may be taken at most"
        )
    return tuple(done)


def check(graph: WorkGraph) -> None:
    """Raises SetupError: the graph makes no sense; the message says what and where."""
    _check(graph, "", depth=0)
    count = size(graph)
    if count > MAX_NODES:
        raise SetupError(f"the graph has {count} nodes; {MAX_NODES} is the most")


def size(graph: WorkGraph) -> int:
    """Nodes, with those inside of others."""
    return sum(1 + (size(node.inside) if node.inside else 0) for node in graph.nodes)


def critical_path(graph: WorkGraph, node_s: Mapping[str, float]) -> tuple[float, tuple[str, ...]]:
    """The longest path through a graph without feedback, and the names along it.

    Args:
        node_s: seconds of each node, transfers to it included.
    """
    ends: dict[str, tuple[float, str | None]] = {}
    before = predecessors(graph)
    for name in order(graph):
        latest = max(((ends[e.source][0], e.source) for e in before[name]), default=(0.0, None))
        ends[name] = (latest[0] + node_s[name], latest[1])
    if not ends:
        return 0.0, ()
    at: str | None = max(ends, key=lambda name: ends[name][0])
    assert at is not None
    longest = ends[at][0]
    path: list[str] = []
    while at is not None:
        path.append(at)
        at = ends[at][1]
    return longest, tuple(reversed(path))


def _check(graph: WorkGraph, where: str, depth: int) -> None:
    if depth > MAX_DEPTH:
        raise SetupError(f"{where}graphs are nested more than {MAX_DEPTH} deep")
    names = [node.name for node in graph.nodes]
    if twice := _first_twice(names):
        raise SetupError(f"{where}two nodes are named '{twice}'")
    for node in graph.nodes:
        _check_node(node, where, depth)
    known = set(names)
    for edge in graph.edges:
        _check_edge(edge, known, where)
    order(graph)


def _check_node(node: WorkNode, where: str, depth: int) -> None:
    what = f"{where}node '{node.name}'"
    if (node.kind is WorkKind.AGENT) != (node.inside is not None):
        raise SetupError(f"{what}: an agent has a graph inside, and nothing else has")
    if (node.kind in LLM_KINDS) != (node.tokens is not None):
        raise SetupError(f"{what}: an LLM call has tokens, and nothing else has")
    amounts = [node.runs, *msgspec.structs.astuple(node.work)]
    if node.tokens is not None:
        amounts += msgspec.structs.astuple(node.tokens)
        if node.tokens.cached > node.tokens.prompt:
            raise SetupError(f"{what}: more tokens are cached than the prompt has")
    if not all(0 <= amount < float("inf") for amount in amounts):
        raise SetupError(f"{what}: runs, work and tokens must be 0 or more, and finite")
    if node.inside is not None:
        _check(node.inside, f"in '{node.name}': ", depth + 1)


def _check_edge(edge: WorkEdge, known: Iterable[str], where: str) -> None:
    what = f"{where}edge {edge.source} -> {edge.target}"
    for end in (edge.source, edge.target):
        if end not in known:
            raise SetupError(f"{what}: there is no node '{end}'")
    if not 0 <= edge.share <= 1:
        raise SetupError(f"{what}: share is {edge.share}; give 0 to 1")
    if not 0 <= edge.data_bytes < float("inf"):
        raise SetupError(f"{what}: data_bytes must be 0 or more, and finite")
    if edge.times is not None and not 1 <= edge.times <= MAX_TIMES:
        raise SetupError(f"{what}: times is {edge.times}; give 1 to {MAX_TIMES}")


def _first_twice(names: Sequence[str]) -> str | None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            return name
        seen.add(name)
    return None
