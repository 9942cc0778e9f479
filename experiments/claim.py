"""A claim: which simulated runs it needs, and what is said of them."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import msgspec

from bench.report import Figure
from experiments.baselines import DEFAULT
from experiments.combinations import ALL
from experiments.grids import E2E, PER_TOKEN, Found, Grid, Metric, Runs, found, mean, ratio, ratios
from experiments.rates import LOADS, Rates
from experiments.report import picture
from experiments.runs import Cell, Row
from kairos.core import Interval

LATENCY = "s_per_token"  # what the Kairos paper calls latency: seconds per generated token
FIGURES = {"mean": "mean", "p90": "P90", "p95": "P95", "p99": "P99"}
END_TO_END, PROGRAM_LEVEL = (E2E, "end to end"), (PER_TOKEN, "per token")
Reductions = Mapping[tuple[str, str], tuple[float, float]]  # (baseline, figure) -> %, least, most


class View(msgspec.Struct, frozen=True):
    """All rows there are, seen through grids."""

    rates: Rates
    rows: Mapping[Cell, Row]
    quick: bool

    def found(self, grid: Grid) -> Found:
        return found(grid, self.rates, self.rows, self.quick)


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """One section of the report. Text is Markdown."""

    title: str
    grids: tuple[Grid, ...]
    section: Callable[[View], str]
    figures: Callable[[View], list[Figure]] = lambda _: []
    against: str | None = None  # whose means the picture compares all others with; None: no picture
    metrics: tuple[tuple[Metric, str], ...] = (END_TO_END,)  # of the picture


class Study(msgspec.Struct, frozen=True, kw_only=True):
    """A section that measures for itself: its rows are in a file of its name. `measure` is None
    where a command of its own does, on a machine that few have."""

    title: str
    row: type[msgspec.Struct]  # with the `commit` that it was measured at
    measure: Callable[[bool], Iterable[msgspec.Struct]] | None  # of whether it is reduced
    section: Callable[[Sequence[Any]], str]
    draw: Callable[[Sequence[Any], Path], None] | None = None
    figures: Callable[[Sequence[Any]], list[Figure]] = lambda _: []


def gap_figures(
    name: str, gaps: Sequence[float], unit: str, *, mean: float, worst: float
) -> list[Figure]:
    """Return the mean and the worst of gaps, in %, with their targets."""
    return [
        Figure(name=f"{name}, {which}", value=round(gap, 2), unit=unit, target=target)
        for which, gap, target in (("mean", fmean(gaps), mean), ("worst", max(gaps), worst))
    ]


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """In Markdown; the first column is text, the others are figures."""
    lines = [header, ["-", *["-:"] * (len(header) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def change(of: Interval) -> str:
    """What a ratio comes to, as papers say it: so much lower or higher, with its interval."""
    return f"{_percent(of.mean)} [{_percent(of.low)}, {_percent(of.high)}]"


def _percent(ratio: float) -> str:
    return f"{100 * (ratio - 1):+.1f}"


def reductions(
    runs_at: Mapping[str, dict[str, Runs]], paper: Reductions, ours: Sequence[str]
) -> str:
    """A table: by how much each of ours is below the baselines, in %, beside the paper's figures;
    bold where it is as much as there, or more. `runs_at`: by load."""
    header = ["below, in %", "paper", *(f"{name}, {load}" for name in ours for load in runs_at)]
    rows: list[list[str]] = []
    for (baseline, figure), (least, most) in paper.items():
        rows.append([f"{baseline}, {FIGURES[figure]} s/token", f"-{least:g} .. -{most:g}"])
        found = [
            ratio(runs, name, baseline, (LATENCY, figure))
            for name in ours
            for runs in runs_at.values()
        ]
        rows[-1] += [
            f"**{change(each)}**" if 100 * (1 - each.mean) >= least else change(each)
            for each in found
        ]
    for baseline in dict.fromkeys(baseline for baseline, _ in paper):
        rows.append([f"{baseline}, mean end to end", "not said"])
        rows[-1] += [
            change(ratio(runs, name, baseline, E2E)) for name in ours for runs in runs_at.values()
        ]
    return table(header, rows)


def beside_paper(grid: Grid, paper: Reductions, ours: Sequence[str], view: View) -> str:
    """Such a table for each of ours, on a grid of one workload; and the first over the others."""
    [workload] = grid.workloads
    runs_at = at_loads(view.found(grid), workload)
    tables = [f"{name}:\n\n{reductions(runs_at, paper, (name,))}" for name in ours]
    return "\n\n".join([*tables, compared(runs_at, ours[0], ours[1:])])


def compared(runs_at: Mapping[str, dict[str, Runs]], name: str, others: Sequence[str]) -> str:
    """Mean and P99 of both metrics over those of others, by load, in %."""
    metrics = {
        f"{FIGURES[figure]} {unit}": (spread, figure)
        for spread, unit in (("e2e_s", "end to end"), (LATENCY, "s/token"))
        for figure in ("mean", "p99")
    }
    rows = [
        [f"{other}, {load}", *(change(ratio(runs, name, other, each)) for each in metrics.values())]
        for other in others
        for load, runs in runs_at.items()
    ]
    return table([f"{name} over, in %", *metrics], rows)


def combinations_table(runs: dict[str, Runs], title: str) -> str:
    """What each came to, and how ours compares, in %: the default, else the first there is."""
    ours = DEFAULT if DEFAULT in runs else next(iter(runs))
    rows = [
        [
            name,
            f"{mean(runs[name], E2E):.2f}",
            f"{mean(runs[name], ('e2e_s', 'p99')):.1f}",
            f"{mean(runs[name], PER_TOKEN):.4f}",
            f"{mean(runs[name], (LATENCY, 'p99')):.3f}",
            "" if name == ours else change(ratio(runs, ours, name)),
            "" if name == ours else change(ratio(runs, ours, name, PER_TOKEN)),
        ]
        for name in ALL
        if name in runs
    ]
    header = [title, "e2e, s", "P99", "s/token", "P99", f"{ours} / it: e2e, %", "s/token, %"]
    return table(header, rows)


def tables_of(grid: Grid, view: View) -> str:
    """One for each workload and load."""
    of = view.found(grid)
    return "\n\n".join(
        combinations_table(of[workload, load], f"{workload}, {load} load")
        for workload in grid.workloads
        for load in grid.loads
        if (workload, load) in of
    )


def at_loads(of: Found, workload: str) -> dict[str, dict[str, Runs]]:
    """By load, those that were run."""
    return {load: of[workload, load] for load in LOADS if (workload, load) in of}


def draw(
    path: Path,
    of: Found,
    against: str,
    metrics: Sequence[tuple[Metric, str]],
) -> None:
    """Ratios of means to those of one combination: a bar at the mean, a dot a seed; a panel for
    each workload and metric."""
    workloads = list(dict.fromkeys(workload for workload, _ in of))
    panels_of = [(workload, *metric) for metric in metrics for workload in workloads]
    columns = min(3, len(panels_of))
    lines = -(-len(panels_of) // columns)
    layout = {"figsize": (4.2 * columns, 3.6 * lines), "sharex": True, "squeeze": False}
    with picture(path, lines, columns, **layout) as (figure, panels):
        for axes, (workload, metric, title) in zip(panels.flat, panels_of, strict=False):
            known = {each for load in LOADS for each in of.get((workload, load), {})}
            names = [each for each in ALL if each in known and each != against]
            for n, load in enumerate(LOADS):
                runs = of.get((workload, load), {})
                for place, each in enumerate(names):
                    by_seed = ratios(runs.get(each, {}), runs.get(against, {}), metric)
                    if by_seed:
                        at = place + (n - 1) * 0.25
                        axes.bar(at, fmean(by_seed), 0.22, color=f"C{n}", alpha=0.6)
                        axes.scatter([at] * len(by_seed), by_seed, s=3, color="black", zorder=2)
                axes.bar(0, 0, color=f"C{n}", alpha=0.6, label=f"{load} load")
            axes.axhline(1, color="grey", linewidth=0.8)
            axes.set_xticks(range(len(names)), names, rotation=50, ha="right", fontsize="small")
            axes.set_title(f"{workload}: mean {title}", fontsize="medium")
        panels.flat[0].legend(fontsize="small")
        figure.suptitle(f"over {against}")
        figure.tight_layout()
