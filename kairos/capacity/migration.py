"""Steps from today's pool to a planned one: instances start and drain while the target is met.

It corresponds to the slow path of Asgar, Nguyen and Katti (2025), section 4.1, between two plans.
After each step workflows are as fast as the target asks, or as today if that is slower. An instance
is drained as soon as the others suffice, so intermediate pools cost as little as possible; if none
can be drained, a new one is started first.

On the way, calls of a model are spread over its instances in proportion to their capacity, like by
a load balancer, or as planned once all of its kinds are there, whichever is faster.
"""

import math
from collections.abc import Iterator, Mapping

import msgspec

from kairos.capacity.hardware_plan import HardwarePlan, HardwareQuestion, question_problem
from kairos.capacity.pool import InstanceKind
from kairos.capacity.pool_search import UNBOUNDED, Routes
from kairos.capacity.prediction import Predictor
from kairos.capacity.serving import Phases
from kairos.core import SetupError

START_S = 120.0  # until an instance that is started serves, as `kairos plan-autoscale` has it
CLOSE = 1e-6
MANY = 50  # of a kind to go: beyond, several in one step


class PoolStep(msgspec.Struct, frozen=True, kw_only=True):
    """Instances of one kind that are started or drained, one after the other."""

    start: bool
    kind: str
    count: int
    counts: Mapping[str, int]  # of the pool after it
    usd_per_hour: float  # of the pool after it
    p95_s: float  # at most, meanwhile and after it; inf: the pool has too much to do
    usd: float  # once: for instances that start, or finish what they have begun


class Migration(msgspec.Struct, frozen=True, kw_only=True):
    today: Mapping[str, int]
    today_usd_per_hour: float
    today_p95_s: float
    steps: tuple[PoolStep, ...]

    @property
    def usd(self) -> float:
        """Return the one-time cost of all steps."""
        return sum(each.usd for each in self.steps)

    @property
    def saved_usd_per_hour(self) -> float:
        after = self.steps[-1].usd_per_hour if self.steps else self.today_usd_per_hour
        return self.today_usd_per_hour - after


def plan_migration(
    question: HardwareQuestion, plan: HardwarePlan, today: Mapping[str, int]
) -> Migration:
    """Return the steps to the chosen pool.

    `question` has an offer with today's devices, too. `today`: counts of instances, by kind. Raises
    SetupError: today's pool has an instance of a kind that this hardware lacks.
    """
    problem, _ = question_problem(question)
    kinds = {kind.name: kind for kind in problem.instances}
    for name in today:
        if name not in kinds:
            near = [each for each in kinds if each.split("-")[0] == name.split("-")[0].split()[0]]
            raise SetupError(
                f"'{name}' is not an instance that can serve these calls; there are "
                + ", ".join(sorted(near or kinds)[:12])
            )
    return _Moving(Predictor(problem, question.workflows), kinds, plan, today).migration(
        question.p95_s
    )


class _Moving:
    def __init__(
        self,
        predictor: Predictor,
        kinds: Mapping[str, InstanceKind],
        plan: HardwarePlan,
        today: Mapping[str, int],
    ) -> None:
        self._predictor, self._kinds = predictor, kinds
        self._goal = plan.chosen.pool.counts
        self._routes = plan.chosen.pool.routes
        self._today = {name: count for name, count in today.items() if count}
        self._agents: dict[str, list[str]] = {}
        for call in predictor.problem.calls:
            self._agents.setdefault(call.model, []).append(call.name)

    def migration(self, target_s: float) -> Migration:
        now = self._p95_s(self._today)
        bound = max(target_s, now) if now < math.inf else target_s
        counts, steps = dict(self._today), list[PoolStep]()
        while (change := self._next(counts, bound * (1 + CLOSE))) is not None:
            name, by, p95_s = change
            counts = {n: c for n, c in {**counts, name: counts.get(name, 0) + by}.items() if c}
            kind = self._kinds[name]
            # A draining instance still has calls for as long as they take.
            lasts_s = START_S if by > 0 else p95_s if p95_s < math.inf else 0.0
            step = PoolStep(
                start=by > 0,
                kind=name,
                count=abs(by),
                counts=counts,
                usd_per_hour=self._usd(counts),
                p95_s=p95_s,
                usd=abs(by) * kind.usd_per_hour * lasts_s / 3600,
            )
            steps = [*steps[:-1], *_joined(steps[-1], step)] if steps else [step]
        return Migration(
            today=self._today,
            today_usd_per_hour=self._usd(self._today),
            today_p95_s=now,
            steps=tuple(steps),
        )

    def _usd(self, counts: Mapping[str, int]) -> float:
        return sum(self._kinds[name].usd_per_hour * count for name, count in counts.items())

    def _next(self, counts: Mapping[str, int], bound_s: float) -> tuple[str, int, float] | None:
        """Return the next change: kind, number, P95 after it. None: the goal is reached."""
        spare = {n: c - self._goal.get(n, 0) for n, c in counts.items() if c > self._goal.get(n, 0)}
        missing = {n: c - counts.get(n, 0) for n, c in self._goal.items() if c > counts.get(n, 0)}

        def after(name: str, by: int) -> tuple[str, int, float]:
            changed = {**counts, name: counts.get(name, 0) + by}
            return name, by, self._p95_s({n: c for n, c in changed.items() if c})

        dearest = sorted(spare, key=lambda name: (-self._kinds[name].usd_per_hour, name))
        for name in dearest:
            for many in dict.fromkeys((max(1, spare[name] // MANY), 1)):
                drained = after(name, -many)
                if drained[2] <= bound_s:
                    return drained
        if missing:
            started = [after(name, max(1, missing[name] // MANY)) for name in sorted(missing)]
            return min(
                started, key=lambda each: (each[2], self._kinds[each[0]].usd_per_hour, each[0])
            )
        # What is left is drained all the same: the plan does without it.
        return min((after(name, -1) for name in dearest), key=lambda each: each[2], default=None)

    def _p95_s(self, counts: Mapping[str, int]) -> float:
        """Return the P95 of workflows there; inf: the pool has too much to do."""
        best = math.inf
        for routes in self._ways(counts):
            there = {name for shares in routes.values() for name in shares}
            found = self._predictor.predicted({n: counts[n] for n in sorted(there)}, routes)
            if found is not None:
                best = min(best, found.p95_s)
        return best

    def _ways(self, counts: Mapping[str, int]) -> Iterator[Routes]:
        """Yield ways to serve all calls: spread evenly, as today, and as planned."""
        for among in (set(counts), set(counts) & set(self._today), set(counts) & set(self._goal)):
            spread = self._spread({n: c for n, c in counts.items() if n in among})
            if spread is not None:
                yield spread
        if all(name in counts for shares in self._routes.values() for name in shares):
            yield self._routes

    def _spread(self, counts: Mapping[str, int]) -> Routes | None:
        """Return shares in proportion to capacity. None: a model has no instance."""
        routes: dict[str, Mapping[str, float]] = {}
        for model, agents in self._agents.items():
            can: dict[Phases, dict[str, float]] = {phases: {} for phases in Phases}
            for name, count in counts.items():
                kind = self._kinds[name]
                if kind.model != model:
                    continue
                state = self._predictor.state(
                    name, UNBOUNDED, {agent: {name: 1.0} for agent in agents}
                )
                if state is not None and state.utilisation:
                    can[kind.phases][name] = count / (state.utilisation * UNBOUNDED)
            sums = {phases: sum(each.values()) for phases, each in can.items()}
            pairs = min(sums[Phases.PREFILL], sums[Phases.DECODE])
            whole = sums[Phases.BOTH] + pairs
            if not whole:
                return None
            shares = {name: each / whole for name, each in can[Phases.BOTH].items()}
            for phases in (Phases.PREFILL, Phases.DECODE) if pairs else ():
                part = pairs / sums[phases] / whole
                shares |= {name: each * part for name, each in can[phases].items()}
            routes |= dict.fromkeys(agents, shares)
        return routes


def _joined(before: PoolStep, step: PoolStep) -> tuple[PoolStep, ...]:
    """Return both steps as one if they are the same kind of change."""
    if (before.start, before.kind) != (step.start, step.kind):
        return before, step
    return (
        msgspec.structs.replace(
            step,
            count=before.count + step.count,
            usd=before.usd + step.usd,
            p95_s=max(before.p95_s, step.p95_s),
        ),
    )
