"""The pools worth having for recorded workflows: the front of cost against P95, and one to choose.

`pool_search.py` finds the pools that no other beats, without knowing the target; the choice is made
among them, by what `prediction.py` says of each.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from statistics import fmean, pvariance

import msgspec

from kairos.errors import SetupError
from kairos.planner.engine_rates import EngineRates
from kairos.planner.instance_kinds import HardwareOffer, instance_kinds
from kairos.planner.kv_transfer import Link
from kairos.planner.lowering import ObservedCall
from kairos.planner.ownership import per_million_tokens, per_workflow
from kairos.planner.pool import CallKind, InstanceKind, Pool, PoolProblem
from kairos.planner.pool_search import FoundPool, SearchLimits, front
from kairos.planner.prediction import Prediction, Predictor
from kairos.planner.serving import NO_TARGETS, CallShape, LatencyTargets

# Of the busiest instances. Up to there planner and simulation were compared: experiments/e35.
CHECKED_UTILISATION = 0.8
APART = 0.98  # of the time of the next cheaper pool that is listed

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
    most_kinds: int | None = None  # of instances in one pool, for each model
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
    in_target: PlannedPool | None = None  # the cheapest within the target, whatever it costs
    in_budget: PlannedPool | None = None  # the quickest within the budget, whatever it takes


def plan(question: HardwareQuestion) -> HardwarePlan:
    """The front, and of it the cheapest within target and budget.

    Where a second too late has a price (`usd_per_s_late`), the choice is where cost and lateness
    together are least. Where nothing is within both, it is the pool that exceeds them least, as a
    multiple of the target or the budget.

    Raises:
        SetupError: no hardware can serve all calls.
    """
    calls = question_calls(question)
    found = instance_kinds(question.offer, calls)
    problem = PoolProblem(
        calls=calls,
        instances=found.kinds,
        workflows_per_s=question.workflows_per_s,
        targets=question.targets,
        link=question.link,
    )
    limits = SearchLimits(most_kinds=question.most_kinds, split=question.split)
    pools = front(Predictor(problem, question.workflows), limits)
    if not pools:
        raise SetupError("no pool of this hardware can serve all calls within the targets")
    planned = tuple(_planned(question, problem, each) for each in pools)
    affordable = [each for each in planned if each.usd_per_hour <= question.usd_per_hour]
    in_time = [each for each in planned if each.prediction.p95_s <= question.p95_s]
    chosen, met = _choice(question, planned)
    return HardwarePlan(
        chosen=chosen,
        met=met,
        front=_apart(planned, {id(each) for each in (chosen, *in_time[:1], *affordable[-1:])}),
        calls=tuple(calls),
        left_out=found.left_out,
        in_target=in_time[0] if in_time else None,
        in_budget=affordable[-1] if affordable else None,
    )


def _apart(front: Sequence[PlannedPool], kept: Collection[int]) -> tuple[PlannedPool, ...]:
    """Return the pools that differ by more than a little in time, and those to keep."""
    found: list[PlannedPool] = []
    quick = math.inf
    for each in front:
        if each.prediction.p95_s < quick * APART or id(each) in kept or each is front[-1]:
            found.append(each)
            quick = each.prediction.p95_s
    return tuple(found)


def question_calls(question: HardwareQuestion) -> tuple[CallKind, ...]:
    """Return the calls of each agent, with its model."""
    found = call_kinds(question.workflows, question.workflows_per_s)
    return tuple(
        msgspec.structs.replace(call, model=question.offer.model_of(call.name).name)
        for call in found
    )


def call_kinds(
    workflows: Workflows, workflows_per_s: float, rates: EngineRates | None = None
) -> tuple[CallKind, ...]:
    """Return the calls of each agent. Without `rates` all count as on the critical path."""
    by_agent: defaultdict[str, list[ObservedCall]] = defaultdict(list)
    on_path: defaultdict[str, int] = defaultdict(int)
    together: defaultdict[str, list[int]] = defaultdict(list)
    for calls in workflows:
        begun = Counter((call.after, call.gap_s) for call in calls)
        for call in calls:
            by_agent[call.agent].append(call)
            together[call.agent].append(begun[call.after, call.gap_s])
        for position in range(len(calls)) if rates is None else _path(calls, rates):
            on_path[calls[position].agent] += 1
    return tuple(
        CallKind(
            name=agent,
            shape=CallShape(
                prompt=fmean(call.prompt_tokens for call in calls),
                answer=fmean(call.answer_tokens for call in calls),
                cached=fmean(call.cached_tokens for call in calls),
                together=fmean(together[agent]),
                new_cv2=_cv2([call.prompt_tokens - call.cached_tokens for call in calls]),
            ),
            per_s=len(calls) / len(workflows) * workflows_per_s,
            on_path=on_path[agent] / len(workflows),
        )
        for agent, calls in sorted(by_agent.items())
    )


def _cv2(values: Sequence[int]) -> float:
    mean = fmean(values)
    return pvariance(values) / mean**2 if mean else 0.0


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


def _planned(question: HardwareQuestion, problem: PoolProblem, found: FoundPool) -> PlannedPool:
    counts = dict(found.counts)
    kinds = tuple(kind for kind in problem.instances if kind.name in counts)
    tokens = sum(call.per_s * (call.shape.prompt + call.shape.answer) for call in problem.calls)
    usd = sum(kind.usd_per_hour * counts[kind.name] for kind in kinds)
    kwh = sum(kind.kwh_per_hour * counts[kind.name] for kind in kinds)
    routes = {call.name: dict(found.routes[call.name]) for call in problem.calls}
    return PlannedPool(
        pool=Pool(
            counts=counts,
            routes=routes,
            usd_per_hour=usd,
            path_s=found.prediction.mean_s,
            late_s=max(0.0, found.prediction.p95_s - question.p95_s),
        ),
        prediction=found.prediction,
        kinds=kinds,
        usd_per_hour=usd,
        usd_per_workflow=per_workflow(usd, question.workflows_per_s),
        usd_per_million_tokens=per_million_tokens(usd, tokens),
        kwh_per_workflow=per_workflow(kwh, question.workflows_per_s),
    )


def _choice(question: HardwareQuestion, front: Sequence[PlannedPool]) -> tuple[PlannedPool, bool]:
    def late_s(each: PlannedPool) -> float:
        return max(0.0, each.prediction.p95_s - question.p95_s)

    def excess(each: PlannedPool) -> float:
        """How many times the budget, or the target, whichever is more."""
        return max(
            each.usd_per_hour / question.usd_per_hour, each.prediction.p95_s / question.p95_s
        )

    affordable = [each for each in front if each.usd_per_hour <= question.usd_per_hour]
    in_time = [each for each in affordable if not late_s(each)]
    if affordable and question.usd_per_s_late < math.inf:
        per_hour = question.usd_per_s_late * question.workflows_per_s * 3600
        best = min(affordable, key=lambda each: each.usd_per_hour + late_s(each) * per_hour)
        return best, not late_s(best)
    if in_time:
        return in_time[0], True
    return min(front, key=excess), False
