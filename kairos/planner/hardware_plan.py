"""The pools worth having for recorded workflows: the front of cost against P95, and one to choose.

The program of `pool.py` is solved for several utilisations and bounds on the time, each pool is put
to `prediction.py`, and those that no other beats in both are kept. So the bound is a means to find
pools that differ, and the target is held against the prediction.
"""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import fmean

import msgspec

from kairos.errors import SetupError
from kairos.planner.engine_rates import EngineRates
from kairos.planner.instance_kinds import HardwareOffer, instance_kinds
from kairos.planner.kv_transfer import Link
from kairos.planner.lowering import ObservedCall
from kairos.planner.ownership import per_million_tokens, per_workflow
from kairos.planner.pool import CallKind, InstanceKind, Pool, PoolProblem, smallest_pool
from kairos.planner.prediction import Prediction, predicted
from kairos.planner.program import NotSolvedInTime
from kairos.planner.serving import NO_TARGETS, CallShape, LatencyTargets

UTILISATIONS = (0.95, 0.85, 0.75, 0.6, 0.45)
BOUNDS = (1.0, 0.8, 0.65, 0.5, 0.4, 0.3, 0.2, 0.1)  # of the time of the cheapest pool's path
GAP = 0.005  # of a pool's cost: proving the rest takes longer than finding it
LIMIT_S = 4.0  # of the solver, for each pool: all of them take minutes at most

# Of the busiest instances. Up to there planner and simulation were compared: experiments/e35.
CHECKED_UTILISATION = 0.8

Workflows = Sequence[Sequence[ObservedCall]]


class HardwareQuestion(msgspec.Struct, frozen=True, kw_only=True):
    """Which hardware these workflows should have, arriving so often."""

    workflows: Workflows
    workflows_per_s: float
    offer: HardwareOffer
    p95_s: float = math.inf  # the target, of whole workflows
    usd_per_hour: float = math.inf  # the budget
    usd_per_s_late: float = math.inf  # the price of a workflow's second beyond the target
    targets: LatencyTargets = NO_TARGETS
    link: Link = Link()
    most_kinds: int | None = None  # of instances in one pool
    split: bool = True  # an agent's calls may go to several kinds


class PlannedPool(msgspec.Struct, frozen=True, kw_only=True):
    """A pool, what it costs, and how long workflows take there."""

    pool: Pool
    prediction: Prediction
    kinds: tuple[InstanceKind, ...]  # that it has
    usd_per_hour: float
    usd_per_workflow: float
    usd_per_million_tokens: float  # of prompts and answers together
    kwh_per_workflow: float

    @property
    def checked(self) -> bool:
        """Whether it is no busier than pools whose planned times were compared with simulation."""
        states = self.prediction.instances.values()
        return all(each.utilisation <= CHECKED_UTILISATION for each in states)


class HardwarePlan(msgspec.Struct, frozen=True, kw_only=True):
    chosen: PlannedPool
    met: bool  # whether it is within target and budget
    front: tuple[PlannedPool, ...]  # cheapest first, each quicker than the one before
    calls: tuple[CallKind, ...]
    left_out: Mapping[str, str]  # devices that could not be used, and why


def plan(question: HardwareQuestion) -> HardwarePlan:
    """The front, and of it the cheapest within target and budget.

    Where a second too late has a price (`usd_per_s_late`), the choice is where cost and lateness
    together are least. Where nothing is within the target, it is the quickest within the budget.

    Raises:
        SetupError: no hardware can serve all calls.
    """
    calls = call_kinds(question.workflows, question.workflows_per_s)
    found = instance_kinds(question.offer, calls, question.targets)
    calls = call_kinds(question.workflows, question.workflows_per_s, found.kinds[0].rates)
    problem = PoolProblem(
        calls=calls,
        instances=found.kinds,
        workflows_per_s=question.workflows_per_s,
        targets=question.targets,
        kv_bytes_per_token=question.offer.model.kv_bytes_per_token(),
        link=question.link,
        most_kinds=question.most_kinds,
        fractions=question.split,
        gap=GAP,
        limit_s=LIMIT_S,
    )
    front = _front(_candidates(question, problem))
    if not front:
        raise SetupError("no pool of this hardware can serve all calls within the targets")
    chosen, met = _choice(question, front)
    return HardwarePlan(
        chosen=chosen, met=met, front=front, calls=tuple(calls), left_out=found.left_out
    )


def call_kinds(
    workflows: Workflows, workflows_per_s: float, rates: EngineRates | None = None
) -> tuple[CallKind, ...]:
    """One for each agent. Without `rates` all calls count as on the critical path."""
    by_agent: defaultdict[str, list[ObservedCall]] = defaultdict(list)
    on_path: defaultdict[str, int] = defaultdict(int)
    for calls in workflows:
        for call in calls:
            by_agent[call.agent].append(call)
        for position in range(len(calls)) if rates is None else _path(calls, rates):
            on_path[calls[position].agent] += 1
    return tuple(
        CallKind(
            name=agent,
            shape=CallShape(
                prompt=fmean(call.prompt_tokens for call in calls),
                answer=fmean(call.answer_tokens for call in calls),
                cached=fmean(call.cached_tokens for call in calls),
            ),
            per_s=len(calls) / len(workflows) * workflows_per_s,
            on_path=on_path[agent] / len(workflows),
        )
        for agent, calls in sorted(by_agent.items())
    )


def _path(calls: Sequence[ObservedCall], rates: EngineRates) -> list[int]:
    """The positions on a workflow's critical path, if each call ran alone on such an instance."""
    ends: list[float] = []
    for call in calls:
        context = call.prompt_tokens + call.answer_tokens / 2
        computing = rates.prefill_s(call.prompt_tokens - call.cached_tokens, call.cached_tokens)
        seconds = computing + call.answer_tokens * rates.step_s(1, context) + call.gap_s
        ends.append(max((ends[each] for each in call.after), default=0.0) + seconds)
    at = max(range(len(ends)), key=lambda position: ends[position])
    path = [at]
    while calls[at].after:
        at = max(calls[at].after, key=lambda position: ends[position])
        path.append(at)
    return path


def _candidates(question: HardwareQuestion, problem: PoolProblem) -> list[PlannedPool]:
    seen: set[tuple[tuple[tuple[str, int], ...], str]] = set()
    found: list[PlannedPool] = []
    for utilisation in UTILISATIONS:
        cheapest = math.inf
        for bound in BOUNDS:
            path_s = bound * cheapest if cheapest < math.inf else math.inf
            pool = _pool(msgspec.structs.replace(problem, utilisation=utilisation, path_s=path_s))
            if pool is None:
                break
            cheapest = min(cheapest, pool.path_s) if cheapest == math.inf else cheapest
            key = tuple(sorted(pool.counts.items())), repr(pool.routes)
            if key not in seen:
                seen.add(key)
                found += _planned(question, problem, pool)
    return found


def _pool(problem: PoolProblem) -> Pool | None:
    """None: there is none, or none was found in time."""
    try:
        return smallest_pool(problem)
    except NotSolvedInTime:
        return None


def _planned(question: HardwareQuestion, problem: PoolProblem, pool: Pool) -> Sequence[PlannedPool]:
    prediction = predicted(problem, pool, question.workflows)
    if prediction is None:
        return ()
    kinds = tuple(kind for kind in problem.instances if kind.name in pool.counts)
    tokens = sum(call.per_s * (call.shape.prompt + call.shape.answer) for call in problem.calls)
    kwh = sum(kind.kwh_per_hour * pool.counts[kind.name] for kind in kinds)
    planned = PlannedPool(
        pool=pool,
        prediction=prediction,
        kinds=kinds,
        usd_per_hour=pool.usd_per_hour,
        usd_per_workflow=per_workflow(pool.usd_per_hour, question.workflows_per_s),
        usd_per_million_tokens=per_million_tokens(pool.usd_per_hour, tokens),
        kwh_per_workflow=per_workflow(kwh, question.workflows_per_s),
    )
    return (planned,)


def _front(found: Sequence[PlannedPool]) -> tuple[PlannedPool, ...]:
    """Those that no other beats in both cost and P95."""
    kept: list[PlannedPool] = []
    for each in sorted(found, key=lambda each: (each.usd_per_hour, each.prediction.p95_s)):
        if not kept or each.prediction.p95_s < kept[-1].prediction.p95_s:
            kept.append(each)
    return tuple(kept)


def _choice(question: HardwareQuestion, front: Sequence[PlannedPool]) -> tuple[PlannedPool, bool]:
    def late_s(each: PlannedPool) -> float:
        return max(0.0, each.prediction.p95_s - question.p95_s)

    affordable = [each for each in front if each.usd_per_hour <= question.usd_per_hour]
    if not affordable:
        return front[0], False
    in_time = [each for each in affordable if not late_s(each)]
    if question.usd_per_s_late < math.inf:
        per_hour = question.usd_per_s_late * question.workflows_per_s * 3600
        best = min(affordable, key=lambda each: each.usd_per_hour + late_s(each) * per_hour)
    elif in_time:
        best = in_time[0]
    else:
        best = affordable[-1]
    return best, not late_s(best)
