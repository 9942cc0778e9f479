"""Grids of simulated runs: what is asked for, and how combinations compare in what was found.

Rows of all grids are in one file, results/runs.jsonl, by cell, since claims share cells; so a
run that was broken off goes on where it was, as long as the code is the same. It is not in git: a
command makes it again. The rows behind the README's table are (`KEPT`). A reduced grid (one
load, two seeds of a sixth of the workflows, which see less load) has a file of its own.
"""

import math
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import fmean

import msgspec

from experiments.combinations import ALL, COMBINATIONS
from experiments.rates import LOADS, Rates
from experiments.report import QUICK, RESULTS, commit
from experiments.runs import Cell, Outcome, Results, Row, code_of, in_parallel
from kairos.core import Interval, mean_interval

KEPT = RESULTS / "headlines.jsonl"
SEEDS, QUICK_SEEDS, QUICK_PART = 10, 2, 6
Metric = tuple[str, str]  # a spread of `Outcome`, and its figure
E2E, PER_TOKEN = ("e2e_s", "mean"), ("s_per_token", "mean")
Runs = dict[int, Outcome]  # by seed
Found = dict[tuple[str, str], dict[str, Runs]]  # (workload, load) -> combination


class Grid(msgspec.Struct, frozen=True, kw_only=True):
    """Every combination on every workload at every load, with a number of seeds."""

    workloads: tuple[str, ...]
    combinations: tuple[str, ...] = tuple(COMBINATIONS)
    loads: tuple[str, ...] = tuple(LOADS)
    seeds: int = SEEDS

    def without_rates(self, known: Rates) -> list[str]:
        """Workloads without known rates of arrival."""
        return [each for each in self.workloads if each not in known]

    def cells(self, known: Rates, quick: bool) -> Iterator[tuple[tuple[str, str, str], Cell]]:
        """Yield each cell with its workload, load and combination."""
        seeds, part = (QUICK_SEEDS, QUICK_PART) if quick else (self.seeds, 1)
        loads = self.loads[len(self.loads) // 2 :][:1] if quick else self.loads
        for workload in self.workloads:
            for load in loads:
                at = known[workload][load]
                for name in self.combinations:
                    combination = ALL[name]
                    for seed in range(1, seeds + 1):
                        yield (
                            (workload, load, name),
                            Cell(
                                workload=workload,
                                rate_per_s=at.rate_per_s,
                                workflows=at.workflows // part,
                                policy=combination.policy,
                                placement=combination.placement,
                                seed=seed,
                            ),
                        )


def results(quick: bool) -> Results:
    """Return all known runs: made on this machine, or committed."""
    if quick:
        return Results(QUICK / "runs.jsonl")
    return Results(RESULTS / "runs.jsonl", KEPT)


def run_missing(cells: Iterable[Cell], results: Results, processes: int) -> None:
    """Yield the runs that this code has not made yet; on a terminal, show progress."""
    missing = [cell for cell in dict.fromkeys(cells) if cell not in results]
    at_commit, shown = commit(), sys.stderr.isatty()
    for done, (cell, outcome) in enumerate(in_parallel(missing, processes), 1):
        results.add(Row(commit=at_commit, code=code_of(cell), cell=cell, outcome=outcome))
        if shown:
            end = "\n" if done == len(missing) else ""
            print(f"\r{done}/{len(missing)} runs", end=end, file=sys.stderr, flush=True)


def found(grid: Grid, known: Rates, rows: Mapping[Cell, Row], quick: bool) -> Found:
    """Results of a grid; cells that were not run are missing."""
    by_place: Found = {}
    for (workload, load, name), cell in grid.cells(known, quick):
        if cell in rows:
            runs = by_place.setdefault((workload, load), {}).setdefault(name, {})
            runs[cell.seed] = rows[cell].outcome
    return by_place


def ratios(ours: Runs, theirs: Runs, metric: Metric = E2E) -> list[float]:
    """Return the ratio of our values to theirs, on the seeds that both have."""
    pairs = [
        (value(ours[seed], metric), value(theirs[seed], metric))
        for seed in sorted(ours.keys() & theirs.keys())
    ]
    return [a / b for a, b in pairs if a is not None and b]


def value(outcome: Outcome, metric: Metric) -> float | None:
    spread, figure = metric
    found: float | None = getattr(outcome, spread)[figure]
    return found


def ratio(runs: dict[str, Runs], ours: str, theirs: str, metric: Metric = E2E) -> Interval:
    """Mean over seeds, with its paired 95 % interval; of one seed, that seed's."""
    return around(ratios(runs[ours], runs[theirs], metric))


def around(values: Sequence[float]) -> Interval:
    """Return the mean with its 95 % interval; a single value has no interval."""
    return mean_interval(values) or Interval(values[0], values[0], values[0])


def mean(runs: Runs, metric: Metric) -> float:
    return mean_known(value(outcome, metric) for outcome in runs.values())


def mean_known(values: Iterable[float | None]) -> float:
    """Return the mean of the known values; `nan` if all are unknown."""
    known = [each for each in values if each is not None]
    return fmean(known) if known else math.nan
