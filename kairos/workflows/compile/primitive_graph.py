"""Graph of the engines' work for a row (Teola's p-graph and e-graph in one form)."""

from collections.abc import Callable, Iterator, Sequence
from typing import Literal

import msgspec

Kind = Literal[
    "Prefill", "PartialPrefill", "FullPrefill", "Decode", "PartialDecode", "Embed", "Ingest",
    "Search", "Rerank", "Call", "Condition", "Aggregate", "CacheFetch",
]  # fmt: skip
Engine = Literal["llm", "embedder", "reranker", "collection", "function", "none"]
Names = tuple[str, ...]


class Primitive(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Unit of work of an engine.

    `name`: the node (`workflows/execute/facts.py`) and the kind. `inputs`: names of primitives.
    `batch`: texts or items at once. `depth`: position on the longest path to an output (a
    CacheFetch does not count). `expects`: tokens of a prompt or of an answer.
    """

    name: str
    op: str
    kind: Kind
    engine: Engine
    inputs: Names
    batch: int = 1
    depth: int = 0
    expects: int = 0


Cost = Callable[[Primitive], float]


class PrimitiveGraph(msgspec.Struct, frozen=True):
    """Graph of primitives, each after its inputs. `outputs`: primitives that a row waits for."""

    primitives: tuple[Primitive, ...]
    outputs: Names

    def finishes(self, cost: Cost) -> dict[str, float]:
        """Return when each ends without waits for engines, in the unit of `cost`."""
        ends: dict[str, float] = {}
        for each in self.primitives:
            ends[each.name] = max((ends[name] for name in each.inputs), default=0.0) + cost(each)
        return ends

    def critical_path(self, cost: Cost) -> float:
        """Return the least time of a row."""
        ends = self.finishes(cost)
        return max((ends[name] for name in self.outputs), default=0.0)

    @property
    def depths(self) -> dict[str, int]:
        """Return the greatest depth of each operator's primitives."""
        found: dict[str, int] = {}
        for each in self.primitives:
            found[each.op] = max(found.get(each.op, 0), each.depth)
        return found


def primitive_lines(graph: PrimitiveGraph) -> Iterator[str]:
    """Yield a line for each primitive, for a terminal: depth, name, and inputs."""
    for each in graph.primitives:
        said = f"{each.depth} {each.name}"
        if each.batch > 1:
            said += f" of {each.batch}"
        if each.inputs:
            said += f" after {', '.join(each.inputs)}"
        yield said


def with_depths(made: Sequence[Primitive]) -> list[Primitive]:
    """Return the primitives with their depths, from the end on, as in Teola's algorithm 2."""
    depths = dict.fromkeys((each.name for each in made), 0)
    steps = {each.name: each.kind != "CacheFetch" for each in made}
    for each in reversed(made):
        for name in each.inputs:
            depths[name] = max(depths[name], depths[each.name] + steps[name])
    return [msgspec.structs.replace(each, depth=depths[each.name]) for each in made]
