"""Measure how far placements of drawn flows are from the best that is known.

A hundred flows of 20 to 100 operators on 2 to 16 devices (`placement_problems.py`). The best known
is the least of all ways here, and of a search that remembers more moves and goes on for four times
as long or longer.
Expected: at most 5 % behind it anywhere, never behind a simple rule. Left out: whether the times of
operators and loads are true. Ten minutes of one core.
"""

from collections.abc import Iterator, Sequence
from statistics import fmean
from time import process_time

import msgspec

from bench.report import Figure
from experiments.claim import Study, gap_figures, table
from experiments.placement_problems import drawn_flow
from experiments.report import commit
from kairos.workflows.compile.placement import place_operators
from kairos.workflows.compile.placement_baselines import (
    co_located,
    data_parallel,
    one_by_one,
    round_robin,
)
from kairos.workflows.compile.placement_moves import PlanMoves

RULES = {
    "round robin": round_robin,
    "co-located": co_located,
    "data parallel": data_parallel,
    "one by one": one_by_one,
}
PLANNED = "planned"
_FLOWS, _FEW = 100, 2
_LONG, _SHORT = 150_000_000, 500_000  # steps of the search for the best known
_HISTORIES = 10_000, 3_000, 30_000, 3_000, 10_000, 1_000


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """Times of a flow, in units of its own, by way to place it."""

    commit: str
    seed: int
    operators: int
    devices: int
    best: float
    took: dict[str, float]
    cpu_s: float  # of planning


def measure(quick: bool) -> Iterator[Row]:
    at_commit = commit()
    for seed in range(_FEW if quick else _FLOWS):
        works, loads, devices = drawn_flow(seed)
        began = process_time()
        planned = place_operators(works, loads, devices)
        cpu_s = process_time() - began
        plans = {PLANNED: planned} | {
            name: rule(works, loads, devices) for name, rule in RULES.items()
        }
        moves, steps = PlanMoves(works, loads, devices), _SHORT if quick else _LONG
        starts = [plans[name].choices for name in ("data parallel", "one by one", PLANNED)]
        longer = moves.cost(moves.improve(starts, steps, _HISTORIES))[0]
        took = {name: plan.makespan_us for name, plan in plans.items()}
        yield Row(
            commit=at_commit,
            seed=seed,
            operators=len(works),
            devices=devices,
            best=min(*took.values(), longer),
            took=took,
            cpu_s=round(cpu_s, 2),
        )


def section(rows: Sequence[Row]) -> str:
    lines = []
    for way in (PLANNED, *RULES):
        gaps = [100 * (row.took[way] / row.best - 1) for row in rows]
        lines.append([way, f"{fmean(gaps):.1f}", f"{max(gaps):.1f}"])
    lines.append(
        ["CPU seconds of planning", *(f"{f(r.cpu_s for r in rows):.2f}" for f in (fmean, max))]
    )
    return table(["behind the best known, in %", "mean", "worst"], lines)


def figures(rows: Sequence[Row]) -> list[Figure]:
    gaps = [100 * (row.took[PLANNED] / row.best - 1) for row in rows]
    name = "placement of drawn flows behind the best known"
    return gap_figures(name, gaps, f"% of its time, {len(gaps)} flows", mean=1.0, worst=5.0)


STUDY = Study(
    title="Placements of drawn flows beside the best known",
    row=Row,
    measure=measure,
    section=section,
    figures=figures,
)
