"""`python -m bench.brain`: what one process can decide: facts in, commands out, learning on.

On one core, in CPU time, medians of several rounds. All of what the live service does with a fact
is in it: the balancer, the figures for /metrics, the log on disk, the orchestrator, and once a
second progress, statuses and learning, which has a thread of its own there. HTTP is not. Workflows
of five calls say who they are (`bench/brain_pool.py`). With `round-robin` beside `kairos`, so that
it shows what the choice of an instance takes and what all the rest does.

`--quick`: few calls on small pools, to see that it works. Adds its figures to bench/results.json,
unless quick; takes eight minutes, most of them for the largest pool.
"""

import gc
import statistics
import tempfile
import tracemalloc
from pathlib import Path

import msgspec
from rich.console import Console

from bench import report
from bench.brain_pool import LEARNING, Brain, Size, open_workflows
from bench.command import Bench
from bench.report import Figure
from kairos.host import collect_less_often

PLACEMENTS = ("kairos", "round-robin")
TARGET_CALLS_PER_S = 3_000  # where most is to be decided, by the default placement

POOL = "{} over {} instances of {} calls, {:,} wait"
RATE = "the whole brain: {}"
FACT = "{}: {}"
LONGEST = "the longest single fact: {}"
MEMORY = "memory of an open workflow of five calls that ended"
MEASURES = {"mean": "mean", "p50": "p50", "p99": "p99"}


class Course(msgspec.Struct, frozen=True):
    """How much is measured."""

    sizes: tuple[Size, ...]
    calls: int  # each round, after `warm_up` that do not count
    warm_up: int
    rounds: int
    workflows: int  # open, to see what memory they take


WHOLE = Course(
    (Size(1, 8), Size(8, 64), Size(64, 200, 10_000)),
    calls=6_000,
    warm_up=2_000,
    rounds=3,
    workflows=2_000,
)
QUICK = Course((Size(1, 4), Size(3, 8, 20)), calls=60, warm_up=10, rounds=1, workflows=50)

Values = dict[str, list[dict[str, float]]]  # by name of the figure, of each round the measures


def whole(course: Course, size: Size, placement: str, seed: int) -> Values:
    with tempfile.TemporaryDirectory() as directory:
        brain = Brain(size, placement, Path(directory), seed)
        collect_less_often()
        brain.run(course.warm_up)
        brain.forget_costs()
        brain.run(course.calls)
        brain.close()
    gc.unfreeze()
    costs = brain.costs_us
    pool = POOL.format(placement, size.instances, size.running, size.waiting)
    facts = {kind: taken for kind, taken in costs.items() if kind != LEARNING}
    all_us = sum(map(sum, costs.values()))
    return {
        RATE.format(pool): [{"mean": brain.ended / all_us * 1e6}],
        **{FACT.format(kind, pool): [measures(taken)] for kind, taken in sorted(facts.items())},
        FACT.format(f"{LEARNING}, once a second", pool): [measures(costs[LEARNING])],
        LONGEST.format(pool): [{"mean": max(map(max, facts.values()))}],
    }


def measures(taken_us: list[float]) -> dict[str, float]:
    return {
        "mean": statistics.mean(taken_us),
        "p50": report.percentile(taken_us, 50),
        "p99": report.percentile(taken_us, 99),
    }


def memory(course: Course) -> Values:
    """By what Python has allocated; the log's block and the figures are in it, and are small."""
    with tempfile.TemporaryDirectory() as directory:
        brain = Brain(Size(1, 1), "round-robin", Path(directory))
        open_workflows(brain, 10)
        gc.collect()
        tracemalloc.start()
        open_workflows(brain, course.workflows)
        gc.collect()
        taken, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        brain.close()
    return {MEMORY: [{"mean": taken / course.workflows / 1e3}]}


def measure(console: Console, quick: bool) -> list[Figure]:
    course = QUICK if quick else WHOLE
    values: Values = {}
    whole(QUICK, QUICK.sizes[0], PLACEMENTS[0], 0)  # what is imported with the first does not count
    for number in range(course.rounds):
        console.print(f"round {number + 1} of {course.rounds}")
        for size in course.sizes:
            for placement in PLACEMENTS:
                for name, rounds in whole(course, size, placement, number).items():
                    values.setdefault(name, []).extend(rounds)
    return figures(values | memory(course), course)


def figures(values: Values, course: Course = WHOLE) -> list[Figure]:
    return [_figure(name, rounds, course) for name, rounds in values.items()]


def _figure(name: str, rounds: list[dict[str, float]], course: Course) -> Figure:
    spreads = {
        each: report.spread([measured[each] for measured in rounds])
        for each in MEASURES
        if each in rounds[0]
    }
    is_rate = name.startswith(RATE.split("{", maxsplit=1)[0])
    most = course.sizes[-1]
    hardest = POOL.format(PLACEMENTS[0], most.instances, most.running, most.waiting)
    return Figure(
        name=name,
        value=spreads["mean"].median,
        unit="calls/s" if is_rate else "kB" if name == MEMORY else "us",
        target=TARGET_CALLS_PER_S if name == RATE.format(hardest) else None,
        better="higher" if is_rate else "lower",
        detail={**spreads},
    )


def shown() -> list[str]:
    """Names of the figures for the documentation."""
    pools = [
        POOL.format(placement, size.instances, size.running, size.waiting)
        for size in WHOLE.sizes
        for placement in PLACEMENTS
    ]
    return [*(RATE.format(pool) for pool in pools), LONGEST.format(pools[-2]), MEMORY]


def main() -> None:
    Bench("brain", __doc__, MEASURES, "few calls on small pools").on_one_core(measure)


if __name__ == "__main__":
    main()
