"""Choose instances, their number, and the routes of calls: cheapest for a load and a time.

A mixed-integer program over (kind of call, kind of instance): a kind of call is routed to instances
that serve both phases, or its prompts to one kind and its answers to another (a pair). A pair's
cost is the sum of its sides, so pairs need no variables of their own: as many of a kind's calls are
decoded as were prefilled. Instances are whole numbers, enough for the busy time of their calls at
the given utilisation.

The program's time is the mean of the calls on a workflow's critical path, at the largest batch and
without waiting, which is linear. The actual time of a pool, with queues and with each workflow's
own lengths, is computed by `prediction.py`.
"""

import math
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from kairos.capacity.engine_rates import EngineRates
from kairos.capacity.hardware import Link, transfer_s
from kairos.capacity.program import EXACT, LinearProgram
from kairos.capacity.serving import NO_TARGETS, InstanceUse, LatencyTargets, Phases, use
from kairos.core import CallShape, SetupError

MOST_INSTANCES = 100_000  # of a kind
SPARE = 1e-9  # of an instance: rounding, where a load fits exactly
NEGLIGIBLE_SHARE = 1e-5  # of calls: ten times the tolerance of the solver


class CallKind(msgspec.Struct, frozen=True, kw_only=True):
    """Mean of the calls of one agent."""

    name: str
    shape: CallShape
    per_s: float
    on_path: float = 1.0  # on a workflow's critical path, in the mean
    model: str = ""


class InstanceKind(msgspec.Struct, frozen=True, kw_only=True):
    """Devices with an engine on them, as offered."""

    name: str
    device: str
    phases: Phases
    rates: EngineRates
    usd_per_hour: float  # of all its devices
    kwh_per_hour: float = 0.0
    paid: str = ""  # how: bought or rented
    model: str = ""  # whose calls it serves
    kv_bytes_per_token: float = 0.0  # of the model; 0: the problem's
    most: int = MOST_INSTANCES  # that can be had
    needs: Mapping[str, float] = {}  # devices by name, and resources of `resources.py`


class PoolProblem(msgspec.Struct, frozen=True, kw_only=True):
    calls: Sequence[CallKind]
    instances: Sequence[InstanceKind]
    workflows_per_s: float
    utilisation: float = 0.8  # of instances' time, at most
    path_s: float = math.inf  # of the calls on the critical path, in the mean, at most
    usd_per_s_late: float = math.inf  # of a workflow; inf: `path_s` is hard
    targets: LatencyTargets = NO_TARGETS
    kv_bytes_per_token: float = 0.0
    link: Link = Link()  # of pairs
    fractions: bool = False  # a kind's calls may be split
    most_kinds: int | None = None  # of instances in the pool; None: any number
    gap: float = EXACT  # how far from the cheapest the answer may be, relative
    limit_s: float = 60.0  # of the solver; then the best that it has found is the answer


class Pool(msgspec.Struct, frozen=True, kw_only=True):
    """Optimal pool."""

    counts: Mapping[str, int]  # of instances, by kind, without zeros
    # Kind of call -> kind of instance -> share of its calls, of answers where that decodes alone.
    routes: Mapping[str, Mapping[str, float]]
    usd_per_hour: float
    path_s: float
    late_s: float


def smallest_pool(problem: PoolProblem) -> Pool | None:
    """Return the cheapest pool. None: no pool is within the limits.

    Raises:
        SetupError: the problem is invalid.
        NotSolvedInTime: the solver found no pool in time.
    """
    if not 0 < problem.utilisation <= 1:
        raise SetupError(f"utilisation is {problem.utilisation}; give more than 0, up to 1")
    building = _Building(problem)
    values = building.program.solve(gap=problem.gap, limit_s=problem.limit_s)
    return None if values is None else building.read(values)


def latency_s(problem: PoolProblem, kind: InstanceKind, call: CallKind, used: InstanceUse) -> float:
    """Return a call's latency; with the transfer of its cache, where the instance only decodes."""
    if kind.phases is not Phases.DECODE:
        return used.latency_s
    size = (kind.kv_bytes_per_token or problem.kv_bytes_per_token) * call.shape.prompt
    return used.latency_s + transfer_s(size, problem.link, kind.rates.devices)


class _Building:
    """Program, with the meanings of its variables."""

    def __init__(self, problem: PoolProblem) -> None:
        self.problem = problem
        self.program = LinearProgram()
        self.count = {
            kind.name: self.program.variable(kind.usd_per_hour, kind.most, whole=True)
            for kind in problem.instances
        }
        self.at: dict[tuple[str, str], int] = {}
        self.busy_s: dict[tuple[str, str], float] = {}
        self.latency_s: dict[tuple[str, str], float] = {}
        for call in problem.calls:
            for kind in problem.instances:
                self._offer(call, kind)
            self._share_out(call)
        for kind in problem.instances:
            self._enough(kind)
        self._few_kinds()
        self.late = self._in_time()

    def _offer(self, call: CallKind, kind: InstanceKind) -> None:
        if kind.model != call.model:
            return
        used = use(kind.rates, call.shape, kind.phases, self.problem.targets)
        if used is not None:
            key = call.name, kind.name
            self.at[key] = self.program.variable(0.0, 1.0, whole=not self.problem.fractions)
            self.busy_s[key] = used.busy_s
            self.latency_s[key] = latency_s(self.problem, kind, call, used)

    def _of(self, call: CallKind, *phases: Phases) -> Iterable[int]:
        return (
            self.at[call.name, kind.name]
            for kind in self.problem.instances
            if kind.phases in phases and (call.name, kind.name) in self.at
        )

    def _share_out(self, call: CallKind) -> None:
        first = self._of(call, Phases.BOTH, Phases.PREFILL)
        self.program.row(dict.fromkeys(first, 1.0), low=1.0, high=1.0)
        prefilled = dict.fromkeys(self._of(call, Phases.PREFILL), -1.0)
        decoded = dict.fromkeys(self._of(call, Phases.DECODE), 1.0)
        self.program.row({**prefilled, **decoded}, low=0.0, high=0.0)

    def _enough(self, kind: InstanceKind) -> None:
        terms = {
            self.at[call.name, kind.name]: call.per_s * self.busy_s[call.name, kind.name]
            for call in self.problem.calls
            if (call.name, kind.name) in self.at
        }
        terms[self.count[kind.name]] = -self.problem.utilisation
        self.program.row(terms, high=SPARE)
        # However little there is to do, one is there; the solver would round that away.
        for call in self.problem.calls:
            if (variable := self.at.get((call.name, kind.name))) is not None:
                self.program.row({variable: 1.0, self.count[kind.name]: -1.0}, high=0.0)

    def _few_kinds(self) -> None:
        """Limit the number of kinds by a variable for each kind, 1 if it has calls."""
        if self.problem.most_kinds is None:
            return
        there = {
            kind.name: self.program.variable(0.0, 1.0, whole=True)
            for kind in self.problem.instances
        }
        for (_, name), variable in self.at.items():
            self.program.row({variable: 1.0, there[name]: -1.0}, high=0.0)
        self.program.row(dict.fromkeys(there.values(), 1.0), high=float(self.problem.most_kinds))

    def _in_time(self) -> int | None:
        if self.problem.path_s == math.inf:
            return None
        on_path = {call.name: call.on_path for call in self.problem.calls}
        terms = {
            variable: on_path[key[0]] * self.latency_s[key] for key, variable in self.at.items()
        }
        late: int | None = None
        if self.problem.usd_per_s_late < math.inf:
            per_hour = self.problem.usd_per_s_late * self.problem.workflows_per_s * 3600
            late = self.program.variable(per_hour)
            terms[late] = -1.0
        self.program.row(terms, high=self.problem.path_s)
        return late

    def read(self, values: Sequence[float]) -> Pool:
        counts = {name: int(values[v]) for name, v in self.count.items() if values[v] > 0}
        routes = {call.name: self._route(call.name, counts, values) for call in self.problem.calls}
        path = sum(
            call.on_path * share * self.latency_s[call.name, kind]
            for call in self.problem.calls
            for kind, share in routes[call.name].items()
        )
        usd = sum(kind.usd_per_hour * counts.get(kind.name, 0) for kind in self.problem.instances)
        late = 0.0 if self.late is None else values[self.late]
        return Pool(counts=counts, routes=routes, usd_per_hour=usd, path_s=path, late_s=late)

    def _route(
        self, call: str, counts: Mapping[str, int], values: Sequence[float]
    ) -> dict[str, float]:
        """Return shares without the ones within the solver's tolerance; their sum is 1 again."""
        seen = {
            kind.name: share
            for kind in self.problem.instances
            if kind.name in counts
            and (variable := self.at.get((call, kind.name))) is not None
            and (share := values[variable]) > NEGLIGIBLE_SHARE
        }
        decoding = {k.name for k in self.problem.instances if k.phases is Phases.DECODE}
        prefilling = {k.name for k in self.problem.instances if k.phases is Phases.PREFILL}
        whole = sum(share for name, share in seen.items() if name not in decoding)
        decoded = sum(share for name, share in seen.items() if name in decoding)
        pairs = sum(share for name, share in seen.items() if name in prefilling) / whole
        return {
            name: share * pairs / decoded if name in decoding else share / whole
            for name, share in seen.items()
        }
