"""The planner's choice against the cheapest pool of brute force, by the same predictor.

Drawn cases: one to three agents with one to three models, two or three kinds of hardware, instances
for whole calls or for one phase as well, loads from 5 to 95 % of one to three instances, targets
from just above the quickest to four times that. Brute force puts every pool that is cheaper than
the planned one to the predictor: every assignment of agents to ways of being served, of one model
also calls that are split in eighths over two ways, and all counts. What the planned pool costs over
the cheapest within the target is the regret. Expected: 2 % at most. Where the planner finds nothing
within the target, brute force goes up to six devices.
"""

import math
import os
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import combinations, product, repeat
from multiprocessing import get_context

import msgspec

from bench.report import Figure
from experiments.claim import Study, table
from experiments.report import commit
from kairos.capacity.hardware_options import load_catalogue
from kairos.capacity.hardware_plan import (
    HardwarePlan,
    HardwareQuestion,
    plan_hardware,
    question_calls,
)
from kairos.capacity.instance_kinds import HardwareOffer, instance_kinds
from kairos.capacity.lowering import ObservedCall
from kairos.capacity.pool import InstanceKind, PoolProblem
from kairos.capacity.prediction import Predictor
from kairos.capacity.serving import Phases, use

AIM = 0.02
CASES, QUICK = 200, 12
WORKFLOWS = 30
MOST_DEVICES = 6  # of a pool, where the planner finds none
CHEAPER = 1 - 1e-6
DEVICES = ("a40", "a100", "h100", "gaudi3", "mi300x", "b200")
MODELS = ("llama-3-8b", "qwen2.5-7b", "llama-2-13b")
LOADS = ((0.05, 0.35), (0.35, 0.65), (0.65, 0.95))  # as the table has them

Routes = dict[str, dict[str, float]]


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """A question, and how it was drawn."""

    seed: int
    models: int
    pairs: bool
    load: float
    question: HardwareQuestion


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """Result of one case."""

    commit: str
    seed: int
    models: int
    pairs: bool
    load: float
    p95_s: float  # the target
    met: bool
    planned: dict[str, int]
    planned_usd: float
    best: dict[str, int] | None  # None: nothing is cheaper
    best_usd: float | None  # None: no pool is within the target
    tried: int
    plan_s: float


def drawn(seed: int) -> Case:
    """A case; the same for the same seed."""
    dice, known = random.Random(seed), load_catalogue()  # noqa: S311
    models = dice.choice((1, 1, 2, 3))
    agents = [f"a{number}" for number in range(dice.randint(models, 3))]
    shapes = [known.model_named(name) for name in dice.sample(MODELS, models)]
    pairs = dice.random() < 0.5
    devices = [known.accelerator_named(n) for n in dice.sample(DEVICES, 3 - (pairs or models > 1))]
    sizes = {a: (dice.choice((200, 700, 3000)), dice.choice((30, 250, 800))) for a in agents}
    fork = dice.random() < 0.3
    workflows = [
        [
            ObservedCall(
                agent=agent,
                prompt_tokens=round(sizes[agent][0] * dice.uniform(0.7, 1.3)),
                answer_tokens=max(1, round(sizes[agent][1] * dice.expovariate(1.0))),
                after=() if not at else (0,) if fork else (at - 1,),
            )
            for at, agent in enumerate(agents)
        ]
        for _ in range(WORKFLOWS)
    ]
    offer = HardwareOffer(
        devices=devices,
        model=shapes[0],
        models={agent: shapes[at % models] for at, agent in enumerate(agents)},
        most_devices=2 if len(agents) == 1 else 1,
        pairs=pairs,
    )
    asked = HardwareQuestion(
        workflows=workflows, workflows_per_s=1.0, offer=offer, most_kinds=3, split=True
    )
    load, count = dice.uniform(0.05, 0.95), dice.randint(1, 3)
    need = _work(asked, devices[0].name)
    asked = msgspec.structs.replace(asked, workflows_per_s=load * count / need)
    quickest = (
        plan_hardware(asked).front[-1].prediction.p95_s
    )  # with as many instances as gain anything
    target = quickest * dice.choice((1.1, 1.2, 1.4, 1.7, 2.5, 4.0))
    asked = msgspec.structs.replace(asked, p95_s=target)
    return Case(seed=seed, models=models, pairs=pairs, load=load, question=asked)


def _work(asked: HardwareQuestion, device: str) -> float:
    """Instances of a device that a workflow a second keeps busy, of the model with most to do."""
    calls = question_calls(asked)
    kinds = instance_kinds(asked.offer, calls).kinds
    needs: dict[str, float] = {}
    for call in calls:
        kind = next(each for each in kinds if each.device == device and each.model == call.model)
        used = use(kind.rates, call.shape, Phases.BOTH)
        assert used is not None
        needs[call.model] = needs.get(call.model, 0.0) + call.per_s * used.busy_s
    return max(needs.values())


class BruteForce:
    """All pools of a question."""

    def __init__(self, asked: HardwareQuestion) -> None:
        calls = question_calls(asked)
        self._asked = asked
        kinds = instance_kinds(asked.offer, calls).kinds
        problem = PoolProblem(
            calls=calls,
            instances=kinds,
            targets=asked.targets,
            link=asked.link,
        )
        self._kinds = {kind.name: kind for kind in kinds}
        self._predictor = Predictor(problem, asked.workflows)
        self._agents: dict[str, list[str]] = {}
        for call in calls:
            self._agents.setdefault(call.model, []).append(call.name)
        self.tried = 0

    def cheapest_below(self, usd: float) -> tuple[float, dict[str, int], Routes] | None:
        """Return the cheapest pool within the target that costs less, with its USD an hour.

        Return None if all cost more. With `usd` inf, pools of up to `MOST_DEVICES` are tried.
        """
        found: tuple[float, dict[str, int], Routes] | None = None
        for routes in self._all_routes():
            of_routes = {name for shares in routes.values() for name in shares}
            names = sorted(of_routes, key=lambda name: (-self._kinds[name].usd_per_hour, name))
            for cost, counts in self._in_time_below(names, routes, usd * CHEAPER):
                usd, found = cost, (cost, counts, routes)
        return found

    def _in_time_below(
        self, names: Sequence[str], routes: Routes, below: float
    ) -> Iterator[tuple[float, dict[str, int]]]:
        """Yield pools in time, each cheaper than the one before; the last is the cheapest.

        More instances are never slower. So where as many as the money buys would be late, fewer are
        not tried, and of the last kind the least number is bisected.
        """
        prices = {name: self._kinds[name].usd_per_hour for name in names}
        chosen: dict[str, int] = {}

        def most(name: str, left: float) -> int:
            devices = MOST_DEVICES - sum(chosen.values()) - (len(names) - len(chosen) - 1)
            rest = sum(prices[each] for each in names if each not in chosen and each != name)
            return devices if left == math.inf else int((left - rest) / prices[name])

        def walk(at: int) -> Iterator[tuple[float, dict[str, int]]]:
            nonlocal below
            name, spent = names[at], sum(prices[each] * n for each, n in chosen.items())
            if most(name, below - spent) < 1:
                return
            full = {each: most(each, below - spent) for each in names[at:]}
            if not self._in_time({**chosen, **full}, routes):
                return
            if at + 1 < len(names):
                count = 1
                while count <= most(name, below - spent):
                    chosen[name] = count
                    yield from walk(at + 1)
                    del chosen[name]
                    count += 1
                return
            late, soon = 0, full[name]
            while soon - late > 1:
                middle = (late + soon) // 2
                if self._in_time({**chosen, name: middle}, routes):
                    soon = middle
                else:
                    late = middle
            cost = spent + prices[name] * soon
            if cost < below:
                below = cost * CHEAPER
                yield cost, {**chosen, name: soon}

        return walk(0)

    def _in_time(self, counts: Mapping[str, int], routes: Routes) -> bool:
        self.tried += 1
        prediction = self._predictor.predicted(counts, routes)
        return prediction is not None and prediction.p95_s <= self._asked.p95_s

    def _all_routes(self) -> Iterator[Routes]:
        for each in product(*(list(self._of_model(m, a)) for m, a in self._agents.items())):
            yield {agent: shares for part in each for agent, shares in part.items()}

    def _of_model(self, model: str, agents: Sequence[str]) -> Iterator[Routes]:
        ways = list(_ways([kind for kind in self._kinds.values() if kind.model == model]))
        most = self._asked.most_kinds or math.inf
        for chosen in product(ways, repeat=len(agents)):
            if len({name for way in chosen for name in way}) <= most:
                yield {
                    agent: dict.fromkeys(way, 1.0)
                    for agent, way in zip(agents, chosen, strict=True)
                }
        for a, b in combinations(ways, 2):
            if set(a) & set(b) or len(a) + len(b) > most:
                continue
            for share in (k / 8 for k in range(1, 8)):
                shares = dict.fromkeys(a, share) | dict.fromkeys(b, 1 - share)
                yield dict.fromkeys(agents, shares)


def _ways(kinds: Sequence[InstanceKind]) -> Iterator[tuple[str, ...]]:
    for kind in kinds:
        if kind.phases is Phases.BOTH:
            yield (kind.name,)
        elif kind.phases is Phases.PREFILL:
            yield from ((kind.name, other.name) for other in kinds if other.phases is Phases.DECODE)


def judged(case: Case, at_commit: str = "") -> Row:
    """The plan, and what brute force finds below it."""
    begun = time.process_time()
    found: HardwarePlan = plan_hardware(case.question)
    took = time.process_time() - begun
    brute = BruteForce(case.question)
    usd = found.chosen.usd_per_hour
    below = brute.cheapest_below(usd if found.met else math.inf)
    best = below[0] if below is not None else usd if found.met else None
    return Row(
        commit=at_commit,
        seed=case.seed,
        models=case.models,
        pairs=case.pairs,
        load=round(case.load, 3),
        p95_s=float(f"{case.question.p95_s:.4g}"),
        met=found.met,
        planned=dict(found.chosen.pool.counts),
        planned_usd=round(usd, 4),
        best=None if below is None else below[1],
        best_usd=None if best is None else round(best, 4),
        tried=brute.tried,
        plan_s=round(took, 2),
    )


def regret(row: Row) -> float:
    """Return the planned cost over the cheapest, as a share; inf: a pool was overlooked."""
    if row.best_usd is None:
        return 0.0
    return row.planned_usd / row.best_usd - 1 if row.met else math.inf


def measure(quick: bool) -> Iterator[Row]:
    if quick:
        return map(_judged, range(QUICK), repeat(commit()))
    return _side_by_side()


def _side_by_side() -> Iterator[Row]:
    processes = os.cpu_count() or 1
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        yield from pool.map(_judged, range(CASES), repeat(commit()))


def _judged(seed: int, at_commit: str) -> Row:
    return judged(drawn(seed), at_commit)


def section(rows: Sequence[Row]) -> str:
    worst = max(map(regret, rows))
    good = sum(regret(row) <= AIM for row in rows)
    return (
        f"Within {AIM:.0%} of the cheapest in {good} of {len(rows)} cases; the worst is "
        f"{worst:.1%} above it. {sum(row.tried for row in rows):,} pools were tried.\n\n"
        + table(
            ["load", "instances", "models", "cases", "the cheapest", "regret, mean", "worst",
             "planning, CPU s at most"],
            (_line(name, kind, models, some) for name, kind, models, some in _groups(rows)),
        )
    )  # fmt: skip


def _groups(rows: Sequence[Row]) -> Iterator[tuple[str, str, int, list[Row]]]:
    for low, high in LOADS:
        for pairs in (False, True):
            for models in (1, 2, 3):
                some = [
                    row
                    for row in rows
                    if low <= row.load < high and row.pairs == pairs and row.models == models
                ]
                if some:
                    kind = "whole and pairs" if pairs else "whole"
                    yield f"{low:.0%} to {high:.0%}", kind, models, some


def _line(name: str, kind: str, models: int, rows: Sequence[Row]) -> list[str]:
    found = [*map(regret, rows)]
    return [
        name,
        kind,
        str(models),
        str(len(rows)),
        str(sum(each < 1e-6 for each in found)),
        f"{sum(found) / len(found):.1%}",
        f"{max(found):.1%}",
        f"{max(row.plan_s for row in rows):.1f}",
    ]


def figures(rows: Sequence[Row]) -> list[Figure]:
    return [
        Figure(
            name="cost of the planned pool over the cheapest of brute force",
            value=round(100 * max(map(regret, rows)), 2),
            unit="percent, the worst of the drawn cases",
            target=100 * AIM,
        )
    ]


def simplest(counts: Mapping[str, int]) -> str:
    """A pool in words."""
    return ", ".join(f"{count} x {name}" for name, count in sorted(counts.items()))


STUDY = Study(
    title="The planner's choice against brute force by its own predictor",
    row=Row,
    measure=measure,
    section=section,
    figures=figures,
)
