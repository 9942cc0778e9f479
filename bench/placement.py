"""`python -m bench.placement`: what it costs to decide which instance gets a request.

On one core, in CPU time, medians of several rounds. Before each decision a call has ended, another
has begun, and a third has had its first token, so something is new each time; and time has gone on
as far as it would have. What follows for what instances are expected to hold is part of the figure.
The reference is the paper's (7.7: the packing takes 4.1 ms). What the queue costs, by which it is
decided whose turn it is, `bench.learning` tells.

`--quick`: few decisions on a small pool, to see that it works. Adds its figures to
bench/results.json, unless quick; takes five minutes.
"""

import re
import statistics
import time
from collections.abc import Iterable
from itertools import product

import msgspec
from rich.console import Console

from bench import report
from bench.command import Bench
from bench.placement_overload import Overload
from bench.placement_pool import Pool, Rooms, Size
from bench.report import Figure
from kairos.core import PLACEMENTS, Placement, Request
from kairos.core.dispatcher.available import AvailableInstances
from kairos.host import collect_less_often

ROOMS: dict[Rooms, str] = {"all": "room on all", "half": "room on half", "none": "room on none"}
PREFIXES = {True: "with prefixes", False: "without prefixes"}
OURS = ("kairos",)  # the one for which there is a target, and which is measured in all cases
CROWDED = ("least-kv", *OURS)  # those of which it is measured what a drain costs
PAPER_US = 4_100
# By how many instances there are: of a decision of ours with room on all, and of a call's end after
# which something goes.
DECISION_US = {1: 60, 8: 100, 64: 200}
DRAIN_US = {8: 300, 64: 500}

DECISION = "decision: {} over {} instances of {} calls, {}, {}"
DRAIN = "a call's end: {} over {} instances of {} calls, {:,} wait, {}"
OUTCOMES = ("nothing fits", "something goes")
BOOKING = "all that the ledger is told of one of {:,} calls"
MEASURES = {"mean": "mean", "p50": "p50", "p99": "p99"}


class Course(msgspec.Struct, frozen=True):
    """How much is measured."""

    size: Size  # where it is decided
    smaller: tuple[Size, ...]  # where ours alone decides, with room on all
    crowded: tuple[Size, ...]  # where that many wait
    waiting: int
    decisions: int  # each round, after `warm_up` that do not count
    warm_up: int
    rounds: int


WHOLE = Course(
    Size(64, 200),
    smaller=(Size(1, 8), Size(2, 16), Size(1, 200), Size(8, 200)),
    crowded=(Size(8, 200), Size(64, 200)),
    waiting=1_000,
    decisions=400,
    warm_up=100,
    rounds=3,
)
QUICK = Course(
    Size(4, 20),
    smaller=(Size(1, 4),),
    crowded=(Size(2, 20),),
    waiting=20,
    decisions=30,
    warm_up=5,
    rounds=1,
)

Values = dict[str, list[dict[str, float]]]  # by name of the figure, of each round the measures


def decide(pool: Pool, placement: Placement, request: Request, at: int) -> float:
    """What the balancer does once it is the request's turn; CPU time in us."""
    began = time.process_time_ns()
    AvailableInstances(
        pool.ledger.served.serving(request.model), pool.ledger, placement, at
    ).choose(request)
    took_us = (time.process_time_ns() - began) / 1e3
    placement.forget_reservation()
    return took_us


def decisions(
    course: Course,
    size: Size,
    rooms: Rooms,
    seed: int,
    *,
    prefixes: bool,
    names: Iterable[str] = PLACEMENTS,
) -> Values:
    """Of these placements, on the same pool: none of them decides what goes where."""
    pool = Pool(size, rooms, seed, prefixes=prefixes)
    placements = {name: PLACEMENTS[name](pool.ledger) for name in names}
    taken: dict[str, list[float]] = {name: [] for name in placements}
    booked: list[float] = []
    collect_less_often()
    for _ in range(course.warm_up + course.decisions):
        began = time.process_time_ns()
        where = pool.next_end()
        between_us = (time.process_time_ns() - began) / 1e3
        call = pool.calls.next(pool.at)
        # Each at an instant of its own: what is kept of one must not serve another.
        for at, (name, placement) in enumerate(placements.items(), pool.at):
            taken[name].append(decide(pool, placement, call.request, at))
        began = time.process_time_ns()
        pool.begin(call, where)
        booked.append(between_us + (time.process_time_ns() - began) / 1e3)
    case = size.instances, size.running, ROOMS[rooms], PREFIXES[prefixes]
    found = {
        DECISION.format(name, *case): [measures(v[course.warm_up :])] for name, v in taken.items()
    }
    if rooms == "all" and prefixes:
        found[BOOKING.format(size.instances * size.running)] = [measures(booked[course.warm_up :])]
    return found


def drains(course: Course, size: Size, name: str, seed: int) -> Values:
    crowded = Overload(size, course.waiting, PLACEMENTS[name], seed)
    crowded.ends(course.warm_up)
    case = name, size.instances, size.running, course.waiting
    taken = zip(OUTCOMES, crowded.ends(course.decisions), strict=True)
    return {DRAIN.format(*case, outcome): [measures(us)] for outcome, us in taken if us}


def measures(taken_us: list[float]) -> dict[str, float]:
    return {
        "mean": statistics.mean(taken_us),
        "p50": report.percentile(taken_us, 50),
        "p99": report.percentile(taken_us, 99),
    }


def measure(console: Console, quick: bool) -> list[Figure]:
    course = QUICK if quick else WHOLE
    values: Values = {}
    for number in range(course.rounds):
        console.print(f"round {number + 1} of {course.rounds}")
        found = [
            decisions(
                *(course, course.size, rooms, number),
                prefixes=prefixes,
                names=PLACEMENTS if prefixes else OURS,
            )
            for rooms, prefixes in product(ROOMS, PREFIXES)
        ]
        found += [
            decisions(course, size, "all", number, prefixes=True, names=OURS)
            for size in course.smaller
        ]
        found += [
            drains(course, size, name, number) for size, name in product(course.crowded, CROWDED)
        ]
        for name, rounds in (item for each in found for item in each.items()):
            values.setdefault(name, []).extend(rounds)
    return figures(values)


def figures(values: Values) -> list[Figure]:
    return [_figure(name, rounds) for name, rounds in values.items()]


def _figure(name: str, rounds: list[dict[str, float]]) -> Figure:
    spreads = {each: report.spread([measured[each] for measured in rounds]) for each in MEASURES}
    is_ours = name.startswith(DECISION.split("{", maxsplit=1)[0] + "kairos")
    target = _target_us(name)
    return Figure(
        name=name,
        value=spreads["mean"].median,
        unit="us",
        target=target,
        reference=PAPER_US if is_ours else None,
        detail={**spreads},
    )


def _target_us(name: str) -> float | None:
    found = re.search(r": kairos over (\d+) instances", name)
    if found is None:
        return None
    if name.startswith("decision") and ROOMS["all"] in name:
        return DECISION_US.get(int(found[1]))
    return DRAIN_US.get(int(found[1])) if name.endswith(OUTCOMES[1]) else None


def shown() -> list[str]:
    """Names of the figures for the documentation: those that have a target, and a few beside."""
    sizes = [size for size in (*WHOLE.smaller, WHOLE.size) if size.instances in DECISION_US]
    cases = [(size.instances, size.running, ROOMS["all"], PREFIXES[True]) for size in sizes]
    return [
        *(DECISION.format(OURS[0], *case) for case in cases),
        *(
            DRAIN.format(OURS[0], size.instances, size.running, WHOLE.waiting, outcome)
            for size in WHOLE.crowded
            for outcome in OUTCOMES
        ),
    ]


def main() -> None:
    Bench("placement", __doc__, MEASURES, "few decisions on a small pool").on_one_core(measure)


if __name__ == "__main__":
    main()
