"""`python -m experiments.ordering`: how often the next of two pending requests is the right one.

Claim (Kairos paper, 7.4): an order that is learnt online, from nothing but the agents' names and
what their calls were like, has most pairs of pending requests as their true remaining latency has
them. And ours: where a request stands in its workflow tells more than its agent's name.

Scenarios: each application alone, the demo's three together, and all together, with as many calls
of each application. How it is measured stands in `experiments/trial.py`, the engine whose service
times are used in `experiments/playing.py`. Expect 0.5 of `fcfs`, 1 of the oracle `srpt`, and of
`kairos` on the mix about 0.03 more than of `wasserstein-mds`. The two references learn from
everything at once, and do not run in Kairos: a table by agent and step, and boosted trees on all
that was recorded, which says how much there is to be known at all (0.034). Under two minutes on one
core. The features of `kairos` were chosen on these same recordings (each time one half was learnt,
the other tested), so on others expect less.

Writes experiments/results/ordering.jsonl and its picture, and figures of experiments/report.json;
with fewer than ten seeds, nothing.
"""

import argparse
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec
from rich.console import Console
from rich.progress import track
from rich.table import Table

from bench.report import Figure
from experiments.recordings import read_apps, recordings
from experiments.report import RESULTS, add_figures, commit, picture, write_rows
from experiments.trial import BOUND, CALLS_PER_APP, MIX, Row, measure
from kairos.errors import KairosError

SEEDS = 10
PAPER = {"kairos": 0.835, "ayo": 0.759, "fcfs": 0.5}  # 7.4, mean over the paper's ten scenarios
BASELINE, OURS = "wasserstein-mds", "kairos"
DRAWN = ("fcfs", "las", "ayo", BASELINE, "mean", OURS, BOUND)


class Result(msgspec.Struct, frozen=True):
    """A line of the results."""

    commit: str
    calls_per_app: int
    row: Row


class Summary:
    """The rows by scenario and order."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self.scenarios = list(dict.fromkeys(row.scenario for row in rows))
        self.orders = list(dict.fromkeys(row.order for row in rows))
        self._rows: dict[tuple[str, str], list[Row]] = {}
        for row in rows:
            self._rows.setdefault((row.scenario, row.order), []).append(row)

    def values(self, scenario: str, order: str, *, all_pairs: bool = False) -> list[float]:
        """Accuracies by seed, where there were pairs."""
        rows = self._rows[scenario, order]
        values = [row.all_pairs if all_pairs else row.different_agents for row in rows]
        return [value for value in values if value is not None]

    def gains(self, scenario: str, order: str = OURS, *, all_pairs: bool = False) -> list[float]:
        """By seed: how much more of the pairs this order has right than the paper's ranking has."""
        ours = self.values(scenario, order, all_pairs=all_pairs)
        theirs = self.values(scenario, BASELINE, all_pairs=all_pairs)
        return [round(mine - other, 6) for mine, other in zip(ours, theirs, strict=True)]


def table(summary: Summary, *, all_pairs: bool) -> Table:
    pairs = "all pairs" if all_pairs else "pairs of different agents"
    made = Table(title=f"Ordering accuracy, {pairs}: mean and standard deviation over seeds")
    made.add_column("", no_wrap=True)
    for scenario in summary.scenarios:
        made.add_column(scenario.replace("_", "\n"), justify="right", no_wrap=True)
    if not all_pairs:
        made.add_column("paper", justify="right")
    for order in summary.orders:
        cells = [
            _cell(summary.values(each, order, all_pairs=all_pairs)) for each in summary.scenarios
        ]
        paper = [] if all_pairs else [f"{PAPER[order]:.3f}" if order in PAPER else ""]
        made.add_row(f"[bold]{order}" if order == OURS else order, *cells, *paper)
    return made


def _cell(values: Sequence[float]) -> str:
    if not values:
        return "-"
    return f"{statistics.fmean(values):.3f}\n[dim]{statistics.pstdev(values):.3f}"


def figures(summary: Summary, apps: Sequence[str]) -> list[Figure]:
    """The claims. The detail has what each rests on, and the most that could have been gained."""
    gain = {each: _mean(summary.gains(each)) for each in summary.scenarios}
    worst = min(apps, key=lambda app: gain[app])
    detail: dict[str, object] = {
        "gain, different agents": gain,
        "gain, all pairs": {
            each: _mean(summary.gains(each, all_pairs=True)) for each in summary.scenarios
        },
        "bound, different agents": {
            each: _mean(summary.gains(each, BOUND)) for each in summary.scenarios
        },
    }
    accuracy = {
        order: {each: _mean(summary.values(each, order)) for each in summary.scenarios}
        for order in summary.orders
    }
    return [
        Figure(
            name="ordering accuracy on the mix, kairos minus wasserstein-mds",
            value=gain[MIX],
            unit="share of pairs",
            target=0.03,
            better="higher",
            detail={"by seed": summary.gains(MIX), **detail},
        ),
        Figure(
            name="ordering accuracy on the mix, kairos",
            value=accuracy[OURS][MIX],
            unit="share of pairs",
            target=None,
            better="higher",
            reference=PAPER[OURS],
            detail={"paper": PAPER, "here": accuracy},
        ),
        Figure(
            name="ordering accuracy of the worst application, kairos minus wasserstein-mds",
            value=gain[worst],
            unit="share of pairs",
            target=0.0,
            better="higher",
            detail={"application": worst, "by seed": summary.gains(worst), **detail},
        ),
    ]


def bound(summary: Summary) -> str:
    """What could have been gained at all."""
    gains = ", ".join(
        f"{each} {_mean(summary.gains(each, BOUND)):+.3f}" for each in summary.scenarios
    )
    return f"gain over {BASELINE} of trees that see all recorded features (a bound): {gains}"


def _mean(values: Sequence[float]) -> float:
    return round(statistics.fmean(values), 6)


def draw(summary: Summary, path: Path) -> None:
    """Bars of the mean, whiskers of one standard deviation; as PNG and SVG."""
    with picture(path, figsize=(13, 5), layout="constrained") as (figure, axes):
        width = 0.85 / len(DRAWN)
        for n, order in enumerate(DRAWN):
            values = [summary.values(each, order) for each in summary.scenarios]
            axes.bar(
                [place + (n - (len(DRAWN) - 1) / 2) * width for place in range(len(values))],
                [statistics.fmean(each) for each in values],
                width,
                yerr=[statistics.pstdev(each) for each in values],
                label=order,
                color=f"C{n}",
                error_kw={"linewidth": 0.8, "alpha": 0.6},
            )
        for name, value in PAPER.items():
            color = f"C{DRAWN.index(name)}"
            axes.axhline(value, color=color, linestyle="--", linewidth=1, label=f"{name}, paper")
        names = [each.replace("_", "\n") for each in summary.scenarios]
        axes.set_xticks(range(len(names)), names)
        axes.set_ylabel("share of pairs in the right order")
        axes.set_ylim(0, 1)
        figure.legend(loc="outside upper center", ncols=len(DRAWN) + len(PAPER), fontsize="small")


def main() -> None:
    parser = argparse.ArgumentParser(description="Ordering accuracy: Kairos paper, 7.4.")
    parser.add_argument(
        "--seeds",
        type=int,
        default=SEEDS,
        help=f"how many halvings [{SEEDS}]; fewer are shown, not kept",
    )
    parser.add_argument("--json", action="store_true", help="print the figures as JSON instead")
    options = parser.parse_args()
    console = Console(stderr=options.json)
    try:
        apps = read_apps(*recordings())
    except KairosError as error:
        sys.exit(f"experiments.ordering: {error}")
    per_seed = measure(apps, range(options.seeds))
    rows = list(track(per_seed, "measuring", total=None, console=console, transient=True))
    summary = Summary(rows)
    found = figures(summary, list(apps))
    if options.seeds >= SEEDS:  # fewer are for a look
        results = [Result(commit(), CALLS_PER_APP, row) for row in rows]
        write_rows(RESULTS / "ordering.jsonl", results)
        add_figures(found)
        draw(summary, RESULTS / "ordering")
    if options.json:
        sys.stdout.buffer.write(msgspec.json.encode(found) + b"\n")
        return
    if not console.is_terminal:
        console.width = 120
    console.print(table(summary, all_pairs=False), table(summary, all_pairs=True))
    for figure in found:
        met = {True: ", met", False: ", not met", None: ""}[figure.met]
        target = "" if figure.target is None else f" (target {figure.target:g}{met})"
        console.print(f"{figure.name}: {figure.value}{target}")
    console.print(bound(summary))


if __name__ == "__main__":
    main()
