"""What was found of placements, as tables, figures and a picture."""

from collections.abc import Iterable, Iterator, Sequence
from statistics import fmean

from rich.table import Table

from bench.report import Figure
from experiments.placements_rates import LOADS
from experiments.placements_runs import COMPARED, DEFAULT, ORACLE, Row
from experiments.report import RESULTS, picture
from kairos.confidence import Interval, interval

WITHIN, EVEN, BY_15_PERCENT = 1.03, 1.0, 0.85
PAPERS, REAL = ("colocated-13b", "colocated-8b"), "claude_code"

Runs = dict[int, Row]  # by seed
Grid = dict[tuple[str, str], dict[str, Runs]]  # (workload, load) -> placement


def grid(rows: Sequence[tuple[str, Row]]) -> Grid:
    """Rows, each with the load that its rate stands for."""
    found: Grid = {}
    for load, row in rows:
        runs = found.setdefault((row.cell.workload, load), {})
        runs.setdefault(row.cell.placement, {})[row.cell.seed] = row
    return found


def ratios(ours: Runs, theirs: Runs) -> list[float]:
    """Mean end-to-end latency, ours over theirs, of the seeds that both have."""
    pairs = [
        (ours[seed].outcome.e2e_s["mean"], theirs[seed].outcome.e2e_s["mean"])
        for seed in sorted(ours.keys() & theirs.keys())
    ]
    return [a / b for a, b in pairs if a is not None and b]


def table(found: Grid, workload: str, load: str, against: str) -> Table:
    runs = found[workload, load]
    cell = _any(runs).cell
    seeds = {seed for each in runs.values() for seed in each}
    shown = Table(
        title=f"{workload}, {load} load: {cell.workflows} workflows at {cell.rate_per_s:g}/s, "
        f"policy {cell.policy}, {len(seeds)} seeds",
        title_justify="left",
    )
    headings = (
        "placement",
        "e2e s",
        "P99",
        "s/token",
        "P99",
        "queued",
        "preempt/call",
        "recomputed",
        "cached",
        "longest wait s",
        "failed",
        "CPU s",
        f"{against} / it [95 %]",
    )
    for heading in headings:
        shown.add_column(heading, justify="left" if heading == "placement" else "right")
    for name in (each for each in COMPARED if each in runs):
        shown.add_row(name, *_cells(runs[name]), _ratio(runs.get(against, {}), runs[name]))
    return shown


def _cells(runs: Runs) -> Iterator[str]:
    found = [row.outcome for row in runs.values()]
    yield _mean([each.e2e_s["mean"] for each in found], ".1f")
    yield _mean([each.e2e_s["p99"] for each in found], ".0f")
    yield _mean([each.s_per_token["mean"] for each in found], ".4f")
    yield _mean([each.s_per_token["p99"] for each in found], ".3f")
    yield _mean([each.queued_share for each in found], ".1%")
    yield _mean([each.preemptions_per_call for each in found], ".3f")
    yield _mean([each.recomputed_token_share for each in found], ".1%")
    yield _mean([each.cached_prompt_share for each in found], ".1%")
    yield _mean([each.longest_wait_s for each in found], ".0f")
    yield _mean([each.failed for each in found], ".1f")
    yield _mean([each.cpu_s for each in found], ".1f")


def _mean(values: Sequence[float | None], form: str) -> str:
    known = [value for value in values if value is not None]
    return format(fmean(known), form) if known else "-"


def _ratio(ours: Runs, theirs: Runs) -> str:
    by_seed = ratios(ours, theirs)
    if not by_seed or ours is theirs:
        return ""
    spread = interval(by_seed)
    within = "" if spread is None else f" [{spread.low:.3f}, {spread.high:.3f}]"
    return f"{fmean(by_seed):.3f}{within}"


def figures(found: Grid) -> list[Figure]:
    """The claims, of a complete grid. "No worse" is meant beyond noise: the low end of the 95 %
    interval is below 1. So is "better": the high end is."""
    workloads = dict.fromkeys(workload for workload, _ in found)
    return [
        *(_claim(found, each, ORACLE, "mean", WITHIN) for each in PAPERS),
        *(_claim(found, each, "least-kv", "low", EVEN) for each in workloads),
        _claim(found, REAL, "least-kv", "mean", BY_15_PERCENT, ("high",)),
        _claim(found, REAL, "affinity", "high", EVEN, ("high",)),
    ]


def _claim(
    found: Grid, workload: str, theirs: str, end: str, target: float, loads: Iterable[str] = LOADS
) -> Figure:
    """The load at which the default comes off worst."""
    intervals = {load: interval_of(found[workload, load], DEFAULT, theirs) for load in loads}
    of = "mean" if end == "mean" else f"{end} end of the 95 % interval"
    return Figure(
        name=f"virtual time, {workload}, mean end-to-end latency, {DEFAULT} over {theirs}, "
        f"{'/'.join(intervals)} load, {of}",
        value=round(max(getattr(each, end) for each in intervals.values()), 4),
        unit="ratio",
        target=target,
        detail={
            load: {
                "rate_per_s": _any(found[workload, load]).cell.rate_per_s,
                "seeds": len(found[workload, load][DEFAULT]),
                "mean, low, high": [round(each.mean, 4), round(each.low, 4), round(each.high, 4)],
            }
            for load, each in intervals.items()
        },
    )


def interval_of(runs: dict[str, Runs], ours: str, theirs: str) -> Interval:
    found = interval(ratios(runs[ours], runs[theirs]))
    assert found is not None, "two seeds or more"
    return found


def _any(runs: dict[str, Runs]) -> Row:
    return next(row for each in runs.values() for row in each.values())


def draw(found: Grid) -> None:
    """Mean end-to-end latency over that of least-kv: a dot a seed, a bar at the mean."""
    workloads = list(dict.fromkeys(workload for workload, _ in found))
    names = [name for name in COMPARED if name != "least-kv"]
    layout = {"figsize": (12, 7), "sharex": True, "squeeze": False}
    with picture(RESULTS / "placements", -(-len(workloads) // 3), 3, **layout) as (figure, panels):
        for axes, workload in zip(panels.flat, workloads, strict=False):
            for n, load in enumerate(LOADS):
                runs = found[workload, load]
                for place, name in enumerate(names):
                    by_seed = ratios(runs[name], runs["least-kv"])
                    at = place + (n - 1) * 0.25
                    axes.bar(at, fmean(by_seed), 0.22, color=f"C{n}", alpha=0.6)
                    axes.scatter([at] * len(by_seed), by_seed, s=3, color="black", zorder=2)
                axes.bar(0, 0, color=f"C{n}", alpha=0.6, label=f"{load} load")
            axes.axhline(1, color="grey", linewidth=0.8)
            axes.set_xticks(range(len(names)), names, rotation=40, ha="right")
            axes.set_title(workload, fontsize="medium")
        panels.flat[0].legend(fontsize="small")
        figure.suptitle("mean end-to-end latency over that of least-kv")
        figure.tight_layout()
