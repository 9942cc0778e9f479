"""Pools worth having for recorded workflows: the front of cost against P95, and a choice.

`pool_search.py` finds the pools that no other beats, without knowing the target; one is chosen
among them by the times of `prediction.py`.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from statistics import fmean, pvariance
from typing import Literal

import msgspec

from kairos.capacity.hardware import Link
from kairos.capacity.instance_kinds import HardwareOffer, instance_kinds
from kairos.capacity.lowering import ObservedCall
from kairos.capacity.ownership import per_million_tokens, per_workflow
from kairos.capacity.pool import CallKind, InstanceKind, Pool, PoolProblem
from kairos.capacity.pool_search import FoundPool, SearchLimits, front
from kairos.capacity.prediction import NEAR, Prediction, Predictor
from kairos.capacity.resources import Worker, price, total, worker_needs
from kairos.capacity.serving import NO_TARGETS, LatencyTargets
from kairos.core import CallShape, SetupError

# Of the busiest instances. Up to there planner and simulation were compared: experiments/e35.
CHECKED_UTILISATION = 0.8
APART = 0.98  # of the time of the next cheaper pool that is listed

OFFLINE_LOAD = 0.95  # of what a pool can do, in plans for most tokens for a dollar
LADDER, SINGLY, STEP = 12, 4, 1.5  # rates that are tried for it: one instance more, then in steps
IDLE_PER_S = 1e-3  # workflows, of the first

Workflows = Sequence[Sequence[ObservedCall]]
Objective = Literal["cost", "latency", "energy", "tokens"]


class HardwareQuestion(msgspec.Struct, frozen=True, kw_only=True):
    """Question: the best hardware for these workflows, at their rate of arrival."""

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
    # Least cost within the target, least time within the budget, least energy within both; or, for
    # work that nobody waits for, most tokens for a dollar: then the rate and `p95_s` do not count.
    objective: Objective = "cost"
    have: Mapping[str, float] = {}  # of devices by name, and of resources, at most
    worker: Worker = Worker()  # what a tool needs


class PlannedPool(msgspec.Struct, frozen=True, kw_only=True):
    """Pool with its costs, and its times of workflows."""

    pool: Pool
    prediction: Prediction
    kinds: tuple[InstanceKind, ...]  # that it has
    usd_per_hour: float
    usd_per_workflow: float
    usd_per_million_tokens: float  # of prompts and answers together
    kwh_per_workflow: float
    workflows_per_s: float  # that it is planned for
    resources: Mapping[str, float]  # that it takes beside its devices, with the tools' share

    @property
    def checked(self) -> bool:
        """Return whether its load is within the range checked by simulation."""
        states = self.prediction.instances.values()
        return all(each.utilisation <= CHECKED_UTILISATION for each in states)


class HardwarePlan(msgspec.Struct, frozen=True, kw_only=True):
    chosen: PlannedPool
    met: bool  # whether it is within target and budget
    front: tuple[PlannedPool, ...]  # cheapest first, each quicker than the one before
    left_out: Mapping[str, str]  # devices that could not be used, and why
    in_target: PlannedPool | None = None  # the cheapest within the target, whatever it costs
    in_budget: PlannedPool | None = None  # the quickest within the budget, whatever it takes


def plan_hardware(question: HardwareQuestion) -> HardwarePlan:
    """Return the front, and the best of it within target and budget by the question's objective.

    If being late has a price (`usd_per_s_late`), the choice has the least sum of cost and lateness.
    If no pool meets both limits, it is the one that exceeds them least, as a multiple of the target
    or the budget. Raises SetupError: no hardware can serve all calls, or too little of it is
    available.
    """
    if question.objective == "tokens":
        return _most_tokens(question)
    problem, left_out = question_problem(question)
    pools = front(Predictor(problem, question.workflows), _limits(question))
    if not pools:
        raise _nothing(question)
    planned = tuple(_planned(question, problem, each) for each in pools)
    affordable = [each for each in planned if each.usd_per_hour <= question.usd_per_hour]
    in_time = [each for each in planned if each.prediction.p95_s <= question.p95_s]
    chosen, met = _choice(question, planned)
    in_target = min(in_time, key=lambda each: each.usd_per_hour, default=None)
    in_budget = min(affordable, key=lambda each: each.prediction.p95_s, default=None)
    return HardwarePlan(
        chosen=chosen,
        met=met,
        front=_apart(planned, {id(each) for each in (chosen, in_target, in_budget)}),
        left_out=left_out,
        in_target=in_target,
        in_budget=in_budget,
    )


def _nothing(question: HardwareQuestion) -> SetupError:
    limits = "the targets" + " and what there is (--have)" * bool(question.have)
    return SetupError(f"no pool of this hardware can serve all calls within {limits}")


def question_problem(question: HardwareQuestion) -> tuple[PoolProblem, Mapping[str, str]]:
    """Return the question in the search's terms, and devices that cannot be used, with why.

    Raises SetupError: no device can serve the calls of some model.
    """
    calls = question_calls(question)
    found = instance_kinds(question.offer, calls, question.link)
    problem = PoolProblem(
        calls=calls, instances=found.kinds, targets=question.targets, link=question.link
    )
    return problem, found.left_out


def _tools(question: HardwareQuestion) -> dict[str, float]:
    """Return the needs of the tools that run at once in the mean, by Little's law."""
    gaps = (call.gap_s for calls in question.workflows for call in calls if not call.by_person)
    at_once = question.workflows_per_s * sum(gaps) / len(question.workflows)
    return worker_needs(at_once, question.worker)


def _limits(question: HardwareQuestion, *, least: bool = False) -> SearchLimits:
    """Return the limits of the search.

    Raises SetupError: tools alone need more than is available.
    """
    tools = _tools(question)
    for name, amount in question.have.items():
        if tools.get(name, 0.0) > amount:
            raise SetupError(
                f"tools between calls need {tools[name]:,.3g} {name}, and there are {amount:g}: "
                "allow more (--have), or plan for less (--rate)"
            )
    prices: tuple[Literal["usd", "kwh"], ...] = ("usd",)
    if question.objective == "energy":
        prices = ("kwh", "usd") if question.usd_per_hour < math.inf else ("kwh",)
    return SearchLimits(
        most_kinds=question.most_kinds,
        split=question.split,
        prices=prices,
        have={name: amount - tools.get(name, 0.0) for name, amount in question.have.items()},
        least=least,
    )


def _most_tokens(question: HardwareQuestion) -> HardwarePlan:
    """Return the pool with the most tokens for a dollar, at 95 % of the rate it can sustain.

    For each of some rates the cheapest pool that sustains it is searched for, with its spare
    capacity.
    """
    replace = msgspec.structs.replace
    per_s, found = IDLE_PER_S, list[PlannedPool]()
    for number in range(LADDER):
        asked = replace(question, workflows_per_s=per_s, p95_s=math.inf)
        problem, left_out = question_problem(asked)
        predictor = Predictor(problem, asked.workflows)
        try:
            pools = front(predictor, _limits(asked, least=True))
        except SetupError:
            break
        if not pools:
            break
        pool = pools[0]
        factor = predictor.largest_factor(pool.counts, pool.routes)
        full = replace(asked, workflows_per_s=per_s * factor * OFFLINE_LOAD)
        predictor = predictor.scaled(factor * OFFLINE_LOAD)
        prediction = predictor.predicted(pool.counts, pool.routes)
        assert prediction is not None
        planned = _planned(full, predictor.problem, replace(pool, prediction=prediction))
        if found and planned.usd_per_hour > question.usd_per_hour:
            break
        found.append(planned)
        per_s *= factor * (STEP if number >= SINGLY else 1 + 2 * NEAR)
    if not found:
        raise _nothing(question)
    chosen = min(found, key=lambda each: (each.usd_per_million_tokens, each.usd_per_hour))
    met = chosen.usd_per_hour <= question.usd_per_hour
    return HardwarePlan(
        chosen=chosen,
        met=met,
        front=tuple(sorted(found, key=lambda each: each.usd_per_hour)),
        left_out=left_out,
        in_target=found[0],
        in_budget=chosen if met else None,
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


def call_kinds(workflows: Workflows, workflows_per_s: float) -> tuple[CallKind, ...]:
    """Return the calls of each agent."""
    by_agent: defaultdict[str, list[ObservedCall]] = defaultdict(list)
    together: defaultdict[str, list[int]] = defaultdict(list)
    for calls in workflows:
        begun = Counter((call.after, call.gap_s) for call in calls)
        for call in calls:
            by_agent[call.agent].append(call)
            together[call.agent].append(begun[call.after, call.gap_s])
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
        )
        for agent, calls in sorted(by_agent.items())
    )


def _cv2(values: Sequence[int]) -> float:
    mean = fmean(values)
    return pvariance(values) / mean**2 if mean else 0.0


def _planned(question: HardwareQuestion, problem: PoolProblem, found: FoundPool) -> PlannedPool:
    counts = dict(found.counts)
    kinds = tuple(kind for kind in problem.instances if kind.name in counts)
    tokens = sum(call.per_s * (call.shape.prompt + call.shape.answer) for call in problem.calls)
    resources = total((counts[kind.name], kind.needs) for kind in kinds)
    resources = total([(1, resources), (1, _tools(question))])
    devices = {kind.device for kind in kinds}
    usd = sum(kind.usd_per_hour * counts[kind.name] for kind in kinds)
    usd += price(_tools(question), question.offer.resource_usd)
    kwh = sum(kind.kwh_per_hour * counts[kind.name] for kind in kinds)
    routes = {call.name: dict(found.routes[call.name]) for call in problem.calls}
    return PlannedPool(
        pool=Pool(counts=counts, routes=routes),
        prediction=found.prediction,
        kinds=kinds,
        usd_per_hour=usd,
        usd_per_workflow=per_workflow(usd, question.workflows_per_s),
        usd_per_million_tokens=per_million_tokens(usd, tokens),
        kwh_per_workflow=per_workflow(kwh, question.workflows_per_s),
        workflows_per_s=question.workflows_per_s,
        resources={name: amount for name, amount in resources.items() if name not in devices},
    )


def _choice(question: HardwareQuestion, front: Sequence[PlannedPool]) -> tuple[PlannedPool, bool]:
    def late_s(each: PlannedPool) -> float:
        return max(0.0, each.prediction.p95_s - question.p95_s)

    def excess(each: PlannedPool) -> float:
        """Return the multiple of the budget or the target, whichever is larger."""
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
        return min(in_time, key=_RANKS[question.objective]), True
    return min(front, key=excess), False


_RANKS: Mapping[Objective, Callable[[PlannedPool], tuple[float, float]]] = {
    "cost": lambda each: (each.usd_per_hour, each.prediction.p95_s),
    "latency": lambda each: (each.prediction.p95_s, each.usd_per_hour),
    "energy": lambda each: (each.kwh_per_workflow, each.usd_per_hour),
}
