"""Reasons for the choice of a pool: runners-up, and changes after which another pool wins.

Runners-up are the best pools without one of the chosen pool's devices, each found by a separate
plan. Targets, rates and prices at which another pool wins are computed for the front and the
runners-up only, so a pool that is neither may win a little earlier.
"""

import math
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from kairos.capacity.hardware_plan import (
    HardwarePlan,
    HardwareQuestion,
    PlannedPool,
    plan_hardware,
    question_problem,
)
from kairos.capacity.prediction import Predictor
from kairos.capacity.resources import total
from kairos.core import SetupError

FEW = 3  # cheaper pools that are named
FAR = 10.0  # times a price: further changes are not named


class PriceChange(msgspec.Struct, frozen=True, kw_only=True):
    """A device's price from which on another pool is the cheapest."""

    device: str
    factor: float  # of today's price
    pool: PlannedPool


class Reasons(msgspec.Struct, frozen=True, kw_only=True):
    too_slow: tuple[PlannedPool, ...]  # cheaper than the chosen one; the quickest of them first
    runners_up: Mapping[str, PlannedPool]  # by the device that they do without
    # Targets for which the choice stays: from its own P95 to that of the next cheaper pool.
    target_s: tuple[float, float]
    # Workflows a second: beyond the second the chosen pool is too slow; up to the first, a
    # cheaper pool of the front is quick enough. inf: the target is, at any rate that it can do.
    per_s: tuple[float, float]
    prices: tuple[PriceChange, ...]  # the nearest of each device and direction


def give_reasons(question: HardwareQuestion, found: HardwarePlan) -> Reasons:
    """Return the reasons for a plan that is within its target and budget, by its cost."""
    chosen = found.chosen
    cheaper = [each for each in found.front if each.usd_per_hour < chosen.usd_per_hour]
    by_time = sorted(cheaper, key=lambda each: each.prediction.p95_s)
    runners_up = dict(_without(question, chosen))
    in_time = [each for each in found.front if each.prediction.p95_s <= question.p95_s]
    return Reasons(
        too_slow=tuple(by_time[:FEW]),
        runners_up=runners_up,
        target_s=(
            chosen.prediction.p95_s,
            min((each.prediction.p95_s for each in cheaper), default=math.inf),
        ),
        per_s=_rates(question, chosen, cheaper),
        prices=_prices(chosen, [*in_time, *runners_up.values()]),
    )


def _without(question: HardwareQuestion, chosen: PlannedPool) -> Iterator[tuple[str, PlannedPool]]:
    for device in dict.fromkeys(kind.device for kind in chosen.kinds):
        devices = [each for each in question.offer.devices if each.name != device]
        offer = msgspec.structs.replace(question.offer, devices=devices)
        try:
            other = plan_hardware(msgspec.structs.replace(question, offer=offer))
        except SetupError:
            continue
        if other.met:
            yield device, other.chosen


def _rates(
    question: HardwareQuestion, chosen: PlannedPool, cheaper: Sequence[PlannedPool]
) -> tuple[float, float]:
    problem, _ = question_problem(question)
    predictor = Predictor(problem, question.workflows)

    def most(pool: PlannedPool) -> float:
        """Return the largest rate at which a pool is within the target."""
        return question.workflows_per_s * predictor.largest_factor(
            pool.pool.counts, pool.pool.routes, question.p95_s
        )

    return max(map(most, cheaper), default=0.0), most(chosen)


def _prices(chosen: PlannedPool, others: Sequence[PlannedPool]) -> tuple[PriceChange, ...]:
    nearest: dict[tuple[str, bool], PriceChange] = {}
    for pool in others:
        mine, its = _by_device(chosen), _by_device(pool)
        for device in sorted({*mine, *its}):
            part = mine.get(device, 0.0) - its.get(device, 0.0)
            if not part:
                continue
            factor = 1 + (pool.usd_per_hour - chosen.usd_per_hour) / part
            key = device, factor > 1
            if not 1 / FAR <= factor <= FAR or pool.pool.counts == chosen.pool.counts:
                continue
            if key not in nearest or abs(factor - 1) < abs(nearest[key].factor - 1):
                nearest[key] = PriceChange(device=device, factor=factor, pool=pool)
    return tuple(nearest[key] for key in sorted(nearest))


def _by_device(pool: PlannedPool) -> dict[str, float]:
    """Return USD an hour of each device in a pool."""
    counts = pool.pool.counts
    return total((counts[each.name], {each.device: each.usd_per_hour}) for each in pool.kinds)
