"""What was found, as a line, a table, figures and a picture."""

import statistics
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.table import Table

from bench.report import Figure
from experiments.placements_vllm_rows import (
    Row,
    by_placement,
    preemptions_per_call,
    recomputed_share,
    slower,
    times,
)
from experiments.report import picture
from kairos.core import Interval, mean_interval

MOST_OF_PREEMPTIONS = 0.1  # of those of round-robin
KEYS = ("mean", "p99")


def line(row: Row) -> str:
    """One run."""
    return (
        f"  {row.placement}: {row.preemptions} preemptions of {row.calls} calls, "
        f"{row.recomputed_share:.0%} of the tokens again; workflows {row.e2e_s['mean']:.1f} s, "
        f"P99 {row.e2e_s['p99']:.1f} s; cores: engines {row.cores.engines:.2f}, "
        f"kairos {row.cores.kairos:.2f}, client {row.cores.client:.2f}, "
        f"others {row.cores.others:.2f}"
    )


def table(rows: Sequence[Row], default: str) -> Table:
    """A line for each placement, over all repetitions that are whole."""
    found = by_placement(rows)
    runs, example = len(found[default]), rows[0]
    made = Table(
        title=f"{runs} x {example.workflows} workflows on real vLLM, the same for each placement; "
        f"seconds; in brackets how many more {default} takes, with 95 % intervals"
    )
    made.add_column("")
    for heading in (
        "preemptions\nper request",
        "tokens\nrecomputed",
        "workflow,\nmean",
        "workflow,\nP99",
        "call,\nmean",
        "cores,\nothers'",
    ):
        made.add_column(heading, justify="right")
    if not runs:
        return made
    for name, of_name in found.items():
        recomputed = statistics.fmean(row.recomputed_tokens for row in of_name)
        made.add_row(
            name,
            f"{preemptions_per_call(of_name):.3f}",
            f"{recomputed:.0f} a run, {recomputed_share(of_name):.1%}",
            *(_time_cell(found[default], of_name, key) for key in KEYS),
            f"{statistics.fmean(row.call_s['mean'] or 0.0 for row in of_name):.2f}",
            f"{statistics.fmean(row.cores.others for row in of_name):.2f}",
        )
    return made


def _time_cell(ours: Sequence[Row], theirs: Sequence[Row], key: str) -> str:
    seconds = f"{statistics.fmean(times(theirs, key)):.2f}"
    more = slower(ours, theirs, key)
    if ours is theirs or more is None:
        return seconds
    return f"{seconds} [dim]({more.mean:+.2f}: {more.low:+.2f} to {more.high:+.2f})"


def figures(rows: Sequence[Row], default: str) -> list[Figure]:
    """The claims: how many preemptions, and whether any placement is quicker beyond noise."""
    found = by_placement(rows)
    others = [name for name in found if name != default]
    made = [_slower_figure(found[default], found[name], default, name) for name in others]
    if "round-robin" in others:
        made.insert(0, _preemptions_figure(found, default))
    return made


def _preemptions_figure(found: dict[str, list[Row]], default: str) -> Figure:
    ours, theirs = found[default], found["round-robin"]
    preempted = sum(row.preemptions for row in theirs)
    ratio = sum(row.preemptions for row in ours) / preempted if preempted else None
    return Figure(
        name=f"real vLLM, preemptions, {default} over round-robin",
        value=None if ratio is None else round(ratio, 4),
        unit="ratio",
        target=MOST_OF_PREEMPTIONS,
        detail={
            "repetitions": len(ours),
            "preemptions per request": {
                name: round(preemptions_per_call(of_name), 4) for name, of_name in found.items()
            },
            "share of computed tokens that were recomputed": {
                name: round(recomputed_share(of_name), 4) for name, of_name in found.items()
            },
        },
    )


def _slower_figure(ours: Sequence[Row], theirs: Sequence[Row], default: str, other: str) -> Figure:
    """Not met where all of the interval is above zero."""
    more = {key: slower(ours, theirs, key) for key in KEYS}
    mean = more["mean"]
    return Figure(
        name=f"real vLLM, mean end-to-end latency, {default} less {other}, low end of the interval",
        value=None if mean is None else round(mean.low, 3),
        unit="s, paired, 95 %",
        target=0.0,
        detail={
            "repetitions": len(ours),
            f"{default}, by repetition, s": times(ours, "mean"),
            f"{other}, by repetition, s": times(theirs, "mean"),
            "mean, low and high": _rounded(mean),
            "P99: mean, low and high": _rounded(more["p99"]),
            "others' cores, mean": round(
                statistics.fmean(row.cores.others for row in (*ours, *theirs)), 3
            ),
        },
    )


def _rounded(given: Interval | None) -> list[float] | None:
    return (
        None if given is None else [round(each, 3) for each in (given.mean, given.low, given.high)]
    )


def draw(rows: Sequence[Row], path: Path) -> None:
    """Preemptions per request, recomputed tokens, mean and P99 of workflows: a bar over all
    repetitions with its 95 % interval, a dot for each."""
    found = by_placement(rows)
    panels: dict[str, Callable[[Row], float | None]] = {
        "preemptions per request": lambda row: row.preemptions_per_call,
        "share of computed tokens\nthat were recomputed": lambda row: row.recomputed_share,
        "workflow, mean s": lambda row: row.e2e_s["mean"],
        "workflow, P99 s": lambda row: row.e2e_s["p99"],
    }
    with picture(path, 1, len(panels), figsize=(12, 4), layout="constrained") as (_, all_axes):
        for axes, (title, value) in zip(all_axes, panels.items(), strict=True):
            for place, of_name in enumerate(found.values()):
                values = [value(row) or 0.0 for row in of_name]
                axes.bar(place, statistics.fmean(values), 0.7, color=f"C{place}", alpha=0.6)
                axes.scatter([place] * len(values), values, s=6, color="black", zorder=2)
                if around := mean_interval(values):
                    low, high = around.mean - around.low, around.high - around.mean
                    axes.errorbar(place, around.mean, [[low], [high]], color="black", capsize=3)
            axes.set_xticks(range(len(found)), list(found), rotation=40, ha="right")
            axes.set_title(title, fontsize="medium")
