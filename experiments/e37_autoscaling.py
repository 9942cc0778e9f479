"""Scaling by forecast, beside scaling by what is seen now: instance-hours of a day, and P95.

`kairos plan-autoscale` reckons with what open workflows still need and with those that will begin
while an instance starts. Here it scales a simulated pool for a day, and so do two reactive scalers,
each with several settings: by the queue's length, as is usual, and by calls in flight, as the
Horizontal Pod Autoscaler does it. One more knows what will be in flight (`hindsight_scaling.py`),
and tells how much there is to save. All look every 15 s; an instance takes three minutes to start,
and is paid for from then on until it has drained. Kairos's own policy and placement go before all
of them, and the engines are those of the model of vLLM. Settings were chosen on other seeds.

Workflows are those of RG and CG with answers twice as long, as of models that reason, so that a day
can be computed in a minute. At equal P95: a reactive scaler's hours are read between its settings,
at the P95 of the forecast.

Expected: at least 15 % fewer instance-hours than by the queue's length, and no start and drain
within five minutes of each other.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from itertools import pairwise, product
from pathlib import Path
from statistics import fmean

import msgspec

from bench.report import Figure
from experiments.autoscaled import AutoscaledPool, Decide, PoolSeen, PoolSize
from experiments.azure_day import day
from experiments.claim import Study, table
from experiments.hindsight_scaling import HindsightScaler
from experiments.reactive_scaling import InFlightScaler, QueueScaler
from experiments.report import commit, picture
from experiments.workload import model
from kairos.capacity.autoscaling import Autoscaler, ScalingRules
from kairos.capacity.engine_rates import derived
from kairos.capacity.hardware_options import load_catalogue
from kairos.capacity.pool_simulation import PLACEMENT, POLICY, engine_profile
from kairos.core import PLACEMENTS, POLICIES, EngineProfile
from kairos.simulate import Workflow, World, draw_submissions
from kairos.simulate.workload.application import generate

AIM = 0.85  # of the reactive scaler's instance-hours
SEEDS = (1, 2, 3, 4, 5)
PER_S, HOURS, QUICK_HOURS = 0.06, 24.0, 3.0  # workflows, in the day's mean
ANSWERS = 2.0  # times as long
START_S, CALM_S, EVERY_S, MOST, FIRST = 180.0, 300.0, 15, 12, 1
WINDOW_S = 300.0  # of the Horizontal Pod Autoscaler, as it comes
GENERATED = 300  # workflows of each application
PROCESSES = 2
FORECAST, QUEUE, IN_FLIGHT = "forecast", "queue length", "calls in flight"
HINDSIGHT = "hindsight"
SETTINGS: dict[str, tuple[tuple[float, ...], ...]] = {
    FORECAST: ((0.8,), (0.9,)),  # `utilisation`
    # Calls that wait; quiet time, s. Fewer calls, or more time, cost more at the same P95.
    QUEUE: ((24, 60), (24, 120), (24, 300)),
    IN_FLIGHT: ((12,),),  # to an instance
    HINDSIGHT: ((8.5,),),  # to an instance
}


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One day under one scaler."""

    commit: str
    seed: int
    scaler: str
    setting: tuple[float, ...]
    workflows: int
    hours: float
    instance_hours: float
    mean_s: float
    p50_s: float
    p95_s: float
    p99_s: float
    starts: int
    drains: int
    least_gap_s: float | None  # between a start and a drain, whichever comes first
    sizes: tuple[int, ...] = ()  # instances that are paid for, each five minutes; of the first seed


def measure(quick: bool) -> Iterator[Row]:
    hours = QUICK_HOURS if quick else HOURS
    wanted = [
        (seed, scaler, setting, hours)
        for seed in (SEEDS[:1] if quick else SEEDS)
        for scaler, settings in SETTINGS.items()
        for setting in (settings[:1] if quick else settings)
    ]
    with ProcessPoolExecutor(PROCESSES) as processes:
        yield from processes.map(_row, wanted)


def _row(wanted: tuple[int, str, tuple[float, ...], float]) -> Row:
    seed, scaler, setting, hours = wanted
    at_us = day(seed, PER_S, hours)
    if scaler == HINDSIGHT:
        decide: Decide = HindsightScaler(
            _in_flight(seed, at_us), setting[0], start_s=START_S, every_s=EVERY_S, most=MOST
        )
    else:
        decide = _decide(scaler, setting)
    pool, world = _run(decide, FIRST, at_us, seed)
    e2e = world.metrics.record()["e2e_s"]
    moves = _moves(pool.sizes)
    return Row(
        commit=commit(),
        seed=seed,
        scaler=scaler,
        setting=setting,
        workflows=len(at_us),
        hours=hours,
        instance_hours=round(pool.instance_s / 3_600, 3),
        mean_s=_rounded(e2e["mean"]),
        p50_s=_rounded(e2e["p50"]),
        p95_s=_rounded(e2e["p95"]),
        p99_s=_rounded(e2e["p99"]),
        starts=sum(change > 0 for _, change in moves),
        drains=sum(change < 0 for _, change in moves),
        least_gap_s=_least_gap_s(moves),
        sizes=_paid(pool.sizes) if seed == SEEDS[0] else (),
    )


def _run(
    decide: Decide, instances: int, at_us: Sequence[int], seed: int
) -> tuple[AutoscaledPool, World]:
    """To the end of the day's last workflow."""
    pool = AutoscaledPool(_engine(), decide, instances=instances, start_s=START_S, every_s=EVERY_S)
    world = World(
        draw_submissions(_workflows(), at_us, seed),
        pool.first,
        POLICIES[POLICY],
        PLACEMENTS[PLACEMENT],
        on_second=pool.each_second,
    )
    world.run()
    return pool, world


def _in_flight(seed: int, at_us: Sequence[int]) -> dict[int, int]:
    """Calls at each look, by the second, where there are always enough instances."""
    found: dict[int, int] = {}

    def decide(seen: PoolSeen) -> int:
        found[round(seen.look.at_s)] = seen.look.running + seen.waiting
        return 0

    _run(decide, MOST, at_us, seed)
    return found


def _decide(scaler: str, setting: tuple[float, ...]) -> Decide:
    if scaler == QUEUE:
        return QueueScaler(int(setting[0]), setting[1], most=MOST)
    if scaler == IN_FLIGHT:
        return InFlightScaler(setting[0], WINDOW_S, most=MOST)
    rules = ScalingRules(most=MOST, start_s=START_S, calm_s=CALM_S, utilisation=setting[0])
    forecast = Autoscaler(rules)

    def decide(seen: PoolSeen) -> int:
        return forecast.decide(seen.look, seen.serving, seen.starting).change

    return decide


@cache
def _engine() -> EngineProfile:
    known = load_catalogue()
    rates = derived(known.accelerator_named("a40"), known.model_named("llama-2-13b"))
    return engine_profile(rates, "a40", 8_192)


@cache
def _workflows() -> Sequence[Workflow]:
    models = [model(app, ANSWERS, 1.0) for app in ("rg", "cg")]
    return [each for made in models for each in generate(made, GENERATED, seed=1)]


def _moves(sizes: Sequence[PoolSize]) -> list[tuple[float, int]]:
    """Instants at which instances were started or drained, and how many."""
    there = [(size.at_s, size.serving + size.starting) for size in sizes]
    changes = [(at_s, count - before) for (_, before), (at_s, count) in pairwise(there)]
    return [(at_s, change) for at_s, change in changes if change]


def _least_gap_s(moves: Sequence[tuple[float, int]]) -> float | None:
    gaps = [
        later_s - at_s
        for (at_s, change), (later_s, later) in pairwise(moves)
        if (change > 0) != (later > 0)
    ]
    return min(gaps, default=None)


def _paid(sizes: Sequence[PoolSize]) -> tuple[int, ...]:
    every = 300 // EVERY_S
    return tuple(each.serving + each.starting + each.draining for each in sizes[::every])


def _rounded(value: float) -> float:
    return float(f"{value:.5g}")


def hours_at(rows: Sequence[Row], p95_s: float) -> float:
    """Instance-hours of a scaler at a P95: between its settings, by a straight line, where that is
    least. Beyond what they reach: of that which comes next to it."""
    points = sorted((row.p95_s, row.instance_hours) for row in rows)
    enough = [hours for p95, hours in points if p95 <= p95_s]
    least = min(enough, default=points[0][1])
    for (low, dear), (high, cheap) in product(points, points):
        if low <= p95_s < high and cheap < dear:
            least = min(least, dear + (cheap - dear) * (p95_s - low) / (high - low))
    return least


def _saved(rows: Sequence[Row], seed: int, setting: tuple[float, ...], other: str) -> float:
    """Instance-hours by forecast, over the other's at the same P95."""
    [ours] = [
        row for row in rows if (row.seed, row.scaler, row.setting) == (seed, FORECAST, setting)
    ]
    theirs = [row for row in rows if row.seed == seed and row.scaler == other]
    return ours.instance_hours / hours_at(theirs, ours.p95_s)


def _ratios(rows: Sequence[Row], setting: tuple[float, ...], other: str) -> list[float]:
    seeds = sorted({row.seed for row in rows if row.scaler == other})
    return [_saved(rows, seed, setting, other) for seed in seeds]


def _settings(rows: Sequence[Row], scaler: str) -> list[tuple[float, ...]]:
    return sorted({row.setting for row in rows if row.scaler == scaler})


def section(rows: Sequence[Row]) -> str:
    by_setting = [
        (scaler, setting, [row for row in rows if (row.scaler, row.setting) == (scaler, setting)])
        for scaler in SETTINGS
        for setting in _settings(rows, scaler)
    ]
    days = table(
        [
            *("scaler, setting", "days", "instance-hours"),
            *("P50, s", "P95, s", "P99, s", "starts", "drains"),
        ],
        (
            [
                f"{scaler}, {' / '.join(f'{each:g}' for each in setting)}",
                str(len(found)),
                *(
                    f"{_mean(found, of):.4g}"
                    for of in (
                        lambda row: row.instance_hours,
                        lambda row: row.p50_s,
                        lambda row: row.p95_s,
                        lambda row: row.p99_s,
                        lambda row: row.starts,
                        lambda row: row.drains,
                    )
                ),
            ]
            for scaler, setting, found in by_setting
        ),
    )
    compared = table(
        ["forecast, utilisation", "over", "instance-hours at its P95, mean", "least", "most"],
        (
            [
                f"{setting[0]:g}",
                other,
                *(f"{fold(ratios) - 1:+.1%}" for fold in (fmean, min, max)),
            ]
            for setting in _settings(rows, FORECAST)
            for other in (QUEUE, IN_FLIGHT, HINDSIGHT)
            if (ratios := _ratios(rows, setting, other))
        ),
    )
    gaps = [row.least_gap_s for row in rows if row.scaler == FORECAST and row.least_gap_s]
    least = f"{min(gaps):.0f} s" if gaps else "no time that was seen"
    return (
        f"Means of the days that were measured.\n\n{days}\n\n{compared}\n\n"
        f"Between a start and a drain by forecast there were {least} at least."
    )


def _mean(rows: Sequence[Row], of: Callable[[Row], float]) -> float:
    return fmean(map(of, rows))


def draw(rows: Sequence[Row], path: Path) -> None:
    shown = [(FORECAST, "C0"), (QUEUE, "C1"), (HINDSIGHT, "C2")]
    with picture(path, figsize=(9, 3.5), layout="constrained") as (_, axes):
        for scaler, colour in shown:
            first = [row for row in rows if row.scaler == scaler and row.sizes]
            if not first:
                continue
            row = min(first, key=lambda each: each.p95_s)
            hours = [number / 12 for number in range(len(row.sizes))]
            label = f"{scaler}: {row.instance_hours:.0f} instance-hours, P95 {row.p95_s:.0f} s"
            axes.step(hours, row.sizes, where="post", color=colour, label=label, linewidth=1)
        axes.set_xlabel("hour of the day")
        axes.set_ylabel("instances that are paid for")
        axes.legend(fontsize=8)


def figures(rows: Sequence[Row]) -> list[Figure]:
    best = min(fmean(_ratios(rows, each, QUEUE)) for each in _settings(rows, FORECAST))
    return [
        Figure(
            name="instance-hours by forecast over those by queue length, at equal P95",
            value=round(best, 3),
            unit="ratio, mean of the days",
            target=AIM,
        )
    ]


STUDY = Study(
    title="Scaling by forecast beside scaling by what is seen",
    row=Row,
    measure=measure,
    section=section,
    draw=draw,
    figures=figures,
)
