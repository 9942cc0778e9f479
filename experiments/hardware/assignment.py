"""Which hardware each task of a graph gets: cheapest, within targets that may be soft.

Section 3.1.2 of Asgar, Nguyen and Katti (2025). Deviations, with reasons:

- With x in {0, 1} the program is not convex, as the paper says it is: it is a mixed-integer linear
  one, and is solved as such. `fractions` allows tasks that are split; that relaxation is convex.
- The paper's target is per task, while its example holds the sum of two tasks to it. Here a target
  is for the whole graph, along its critical path, and tasks may have their own beside it.
- Transfers depend on where both ends are, so each pair of an edge has a variable of its own, tied
  to the two ends (exact for whole and for split tasks alike).
- Its throughput constraint (the sum of 1/t over tasks at least R) is left out: what a pool can do
  is bounded by its busiest part, which `pool.py` sizes.
"""

import math
from collections.abc import Mapping, Sequence

import msgspec

from kairos.planner.program import LinearProgram
from kairos.planner.work_graph import WorkEdge, WorkGraph, WorkKind, WorkNode, critical_path

Edge = tuple[str, str]


class TaskCost(msgspec.Struct, frozen=True, kw_only=True):
    """Of a task on some hardware, or of a transfer."""

    s: float
    usd: float
    uses: Mapping[str, float] = {}  # of the hardware's capacity, by resource


FREE = TaskCost(s=0.0, usd=0.0)


class AssignmentProblem(msgspec.Struct, frozen=True, kw_only=True):
    """What may go where, and what that takes."""

    tasks: Mapping[str, Mapping[str, TaskCost]]  # task -> hardware -> cost
    edges: Sequence[Edge] = ()
    # From one hardware to another, by edge. Within the same hardware a transfer is free; between
    # different ones it is impossible where it is not named.
    transfers: Mapping[tuple[Edge, str, str], TaskCost] = {}
    capacity: Mapping[str, Mapping[str, float]] = {}  # hardware -> resource -> most
    target_s: float = math.inf  # of the whole graph
    task_targets_s: Mapping[str, float] = {}
    usd_per_s_late: float = math.inf  # the slack's price (lambda); inf: targets are hard
    fractions: bool = False  # tasks may be split


class TaskAssignment(msgspec.Struct, frozen=True, kw_only=True):
    """The optimum."""

    shares: Mapping[str, Mapping[str, float]]  # task -> hardware -> share, without zeros
    usd: float  # of tasks and transfers; lateness is not in it
    s: float  # along the critical path
    late_s: float  # of the graph and of tasks, together

    def where(self, task: str) -> str:
        """The hardware of a task that is not split."""
        [hardware] = self.shares[task]
        return hardware


def assign(problem: AssignmentProblem) -> TaskAssignment | None:
    """The cheapest assignment. None: nothing is within capacity and hard targets.

    Raises:
        NotSolvedInTime: the solver found nothing in time.
    """
    building = _Building(problem)
    values = building.program.solve()
    return None if values is None else building.read(values)


class _Building:
    """The program, and what its variables stand for."""

    def __init__(self, problem: AssignmentProblem) -> None:
        self.problem = problem
        self.program = LinearProgram()
        whole = not problem.fractions
        self.at = {
            (task, hardware): self.program.variable(cost.usd, 1.0, whole=whole)
            for task, costs in problem.tasks.items()
            for hardware, cost in costs.items()
        }
        self.moves: dict[tuple[Edge, str, str], tuple[int, TaskCost]] = {}
        self.late: list[int] = []
        for task, costs in problem.tasks.items():
            self.program.row({self.at[task, h]: 1.0 for h in costs}, low=1.0, high=1.0)
        for edge in problem.edges:
            self._tie(edge)
        self._capacity()
        self._time()

    def _tie(self, edge: Edge) -> None:
        """The pairs of hardware at an edge's ends, as flows from the one to the other."""
        source, target = edge
        for a in self.problem.tasks[source]:
            for b in self.problem.tasks[target]:
                cost = self.problem.transfers.get((edge, a, b), FREE if a == b else None)
                if cost is not None:
                    self.moves[edge, a, b] = self.program.variable(cost.usd, 1.0), cost
        for a in self.problem.tasks[source]:
            self._flow(edge, self.at[source, a], {b: (a, b) for b in self.problem.tasks[target]})
        for b in self.problem.tasks[target]:
            self._flow(edge, self.at[target, b], {a: (a, b) for a in self.problem.tasks[source]})

    def _flow(self, edge: Edge, end: int, pairs: Mapping[str, tuple[str, str]]) -> None:
        terms = {end: -1.0}
        for a, b in pairs.values():
            if (edge, a, b) in self.moves:
                terms[self.moves[edge, a, b][0]] = 1.0
        self.program.row(terms, low=0.0, high=0.0)

    def _capacity(self) -> None:
        for hardware, limits in self.problem.capacity.items():
            for resource, most in limits.items():
                terms = {
                    self.at[task, hardware]: costs[hardware].uses.get(resource, 0.0)
                    for task, costs in self.problem.tasks.items()
                    if hardware in costs
                }
                self.program.row(terms, high=most)

    def _time(self) -> None:
        """When each task ends, after all before it and their transfers; and the targets."""
        ends = {task: self.program.variable() for task in self.problem.tasks}
        for task in self.problem.tasks:
            self.program.row({ends[task]: 1.0, **self._own(task, -1.0)}, low=0.0)
        for edge in self.problem.edges:
            source, target = edge
            terms = {ends[target]: 1.0, ends[source]: -1.0, **self._own(target, -1.0)}
            terms |= {move: -cost.s for (e, _, _), (move, cost) in self.moves.items() if e == edge}
            self.program.row(terms, low=0.0)
        for task in self.problem.tasks:
            own = self.problem.task_targets_s.get(task, math.inf)
            if own < math.inf:
                self._hold(self._own(task, 1.0), own)
        if self.problem.target_s < math.inf:
            graph_late = self._slack()
            for task in self.problem.tasks:
                self.program.row({ends[task]: 1.0} | graph_late, high=self.problem.target_s)

    def _own(self, task: str, sign: float) -> dict[int, float]:
        costs = self.problem.tasks[task]
        return {self.at[task, hardware]: sign * cost.s for hardware, cost in costs.items()}

    def _hold(self, terms: Mapping[int, float], target_s: float) -> None:
        self.program.row({**terms, **self._slack()}, high=target_s)

    def _slack(self) -> dict[int, float]:
        if self.problem.usd_per_s_late == math.inf:
            return {}
        late = self.program.variable(self.problem.usd_per_s_late)
        self.late.append(late)
        return {late: -1.0}

    def read(self, values: Sequence[float]) -> TaskAssignment:
        shares: dict[str, dict[str, float]] = {task: {} for task in self.problem.tasks}
        usd = 0.0
        own = dict.fromkeys(self.problem.tasks, 0.0)
        for (task, hardware), variable in self.at.items():
            share, cost = values[variable], self.problem.tasks[task][hardware]
            if share > 1e-9:
                shares[task][hardware] = share
                usd += share * cost.usd
                own[task] += share * cost.s
        moved = dict.fromkeys(self.problem.edges, 0.0)
        for (edge, _, _), (variable, cost) in self.moves.items():
            usd += values[variable] * cost.usd
            moved[edge] += values[variable] * cost.s
        late_s = sum(values[each] for each in self.late)
        return TaskAssignment(shares=shares, usd=usd, s=_longest(own, moved), late_s=late_s)


def _longest(own_s: Mapping[str, float], moved_s: Mapping[Edge, float]) -> float:
    """Along tasks and transfers, each of these a node between its ends."""
    nodes = [WorkNode(name=task, kind=WorkKind.COMPUTE) for task in own_s]
    seconds = dict(own_s)
    edges: list[WorkEdge] = []
    for (source, target), s in moved_s.items():
        name = f"{source}\0{target}"
        nodes.append(WorkNode(name=name, kind=WorkKind.COMPUTE))
        seconds[name] = s
        edges += [WorkEdge(source=source, target=name), WorkEdge(source=name, target=target)]
    return critical_path(WorkGraph(nodes=tuple(nodes), edges=tuple(edges)), seconds)[0]
