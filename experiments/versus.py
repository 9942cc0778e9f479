"""`python -m experiments.versus`: the same tasks, live, under `kairos` and under `fcfs`.

Claim: least remaining work first, learnt within the run itself, gives the demo's three applications
a lower mean end-to-end latency than first come, first served, in each of five seeds, where calls
spend half of their workflows' time in the queue (Kairos paper, 7.4, sets the load so; its priority
scheduling is then 1.63 times as fast, a ratio of 0.61). Expect 0.7 to 0.9 of the end-to-end mean,
and less of the seconds per token: short workflows no longer wait behind long ones. The long ones,
cg, pay for it, and with them the P99 of all: look at each application.

For each seed, `kairos demo --engine sim --policy kairos --versus fcfs`. All of it is real: gateway,
HTTP, agents, sandboxed code, the clock; but the engines are two stand-ins of four slots, as fast as
a small model on one core and with the lengths of the recorded run (`traces/demo-smollm2.jsonl.gz`).
How often cg's code fails is the stand-ins' script, not that run, in which it always does. So it
takes real time, 4 to 5 minutes a seed, and little CPU.

Each seed has a rate of its own, because bursts fall otherwise in each: the rate at which one server
as fast as the two, first come, first served, would have half of the time queued. That tells the
share under `fcfs` to about 0.1 (measured, seed 1 at 0.71, 0.84, 0.92, 1.0 and 1.22 workflows per
second: 0.21, 0.38, 0.51, 0.61, 0.72; told: 0.28, 0.42, 0.57, 0.66, 0.75). What was measured stands
in the report.

Writes experiments/results/versus.jsonl and its picture, and figures of experiments/report.json. Run
again at the same commit, it goes on where it was broken off.
"""

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table

from bench.report import Figure
from experiments.report import RESULTS, add_figures, commit, picture, write_rows
from kairos.cli.demo import Demo
from kairos.core import SECOND
from kairos.simulate import plan_arrivals

OURS, THEIRS = "kairos", "fcfs"
SEEDS = 5
WORKFLOWS = 120
HALF = 0.5
SERVED_PER_S, UNQUEUED_S = 1.05, 7.0  # workflows that the engines end, and how long one takes alone
TIME_LIMIT_S = 3_600
PAPER_RATIO = 1 / 1.63  # 7.4, figure 18, where queueing takes half of the time
METRICS = {"e2e_s": "end to end, s", "s_per_token": "s per generated token"}
PANELS = [(metric, key) for metric in METRICS for key in ("mean", "p99")]


class Pair(msgspec.Struct, frozen=True, kw_only=True):
    """One seed under both policies: the comparison record of the demo."""

    commit: str
    seed: int
    workflows: int
    rate_per_s: float
    runs: dict[str, dict[str, Any]]
    ratio: dict[str, Any]


class Results:
    """The pairs of this commit and number of workflows; each is kept as soon as it is known."""

    def __init__(self, path: Path, at_commit: str, workflows: int) -> None:
        self._path, self._commit, self._workflows = path, at_commit, workflows
        lines = path.read_bytes().splitlines() if path.exists() else []
        known = [msgspec.json.decode(line, type=Pair) for line in lines]
        self._pairs = {pair.seed: pair for pair in known if self._still_holds(pair)}

    def _still_holds(self, pair: Pair) -> bool:
        # A `+` aside: what this writes is tracked too, and makes a clean tree a changed one.
        same_code = pair.commit.rstrip("+") == self._commit.rstrip("+")
        return same_code and pair.workflows == self._workflows

    def measured(self, seed: int) -> Pair:
        """From the file, or from a demo that runs now."""
        if seed not in self._pairs:
            rate = rate_of_half(seed, self._workflows)
            record = run_demo(seed, self._workflows, rate)
            self._pairs[seed] = Pair(
                commit=self._commit,
                seed=seed,
                workflows=self._workflows,
                rate_per_s=rate,
                **record,
            )
            write_rows(self._path, self._pairs.values())
        return self._pairs[seed]


def rate_of_half(seed: int, workflows: int) -> float:
    """Workflows per second, to 3 decimals, at which about half of the time is queueing."""
    low, high = 0.1, 10.0
    while high - low > 0.001:
        rate = (low + high) / 2
        share = queued_share(plan_arrivals(Demo().arrivals, workflows, rate, seed).at_us)
        low, high = (rate, high) if share < HALF else (low, rate)
    return round(low, 3)


def queued_share(arrivals_us: Sequence[int]) -> float:
    """Of the workflows' time, at one server, first come, first served (Lindley's recursion)."""
    wait_s = total_s = 0.0
    for at_us, next_us in pairwise([*arrivals_us, arrivals_us[-1]]):
        total_s += wait_s
        wait_s = max(0.0, wait_s + 1 / SERVED_PER_S - (next_us - at_us) / SECOND)
    return total_s / (total_s + UNQUEUED_S * len(arrivals_us))


def run_demo(seed: int, workflows: int, rate_per_s: float) -> dict[str, Any]:
    """What `kairos demo --versus --json` prints. Whatever fails in it fails the experiment."""
    options = {
        "--engine": "sim",
        "--policy": OURS,
        "--versus": THEIRS,
        "--workflows": workflows,
        "--rate": rate_per_s,
        "--seed": seed,
        "--time-limit": TIME_LIMIT_S,
    }
    words = [str(word) for option in options.items() for word in option]
    command = [sys.executable, "-m", "kairos.cli.main", "demo", *words, "--json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=False)  # noqa: S603 (ourselves)
    if done.returncode != 0:
        sys.exit(f"experiments.versus: {' '.join(command[2:])} ended with {done.returncode}")
    record: dict[str, Any] = json.loads(done.stdout)
    return record


def values(pairs: Sequence[Pair], policy: str, app: str, metric: str, key: str) -> list[float]:
    """By seed. `policy` may be "ratio", `app` "all"."""
    records = [pair.ratio if policy == "ratio" else pair.runs[policy] for pair in pairs]
    parts = [record if app == "all" else record["apps"][app] for record in records]
    return [part[metric][key] for part in parts]


def parts_of(pairs: Sequence[Pair]) -> list[str]:
    return [*pairs[0].ratio["apps"], "all"]


def figures(pairs: Sequence[Pair]) -> list[Figure]:
    """The claim, and the ratios of the other figures. All are `kairos` over `fcfs`."""
    by_seed = values(pairs, "ratio", "all", "e2e_s", "mean")
    shares = [round(pair.runs[THEIRS]["queued_share"], 3) for pair in pairs]
    claim = Figure(
        name=f"live demo, mean end-to-end latency, {OURS} over {THEIRS}, worst seed",
        value=round(max(by_seed), 4),
        unit="ratio",
        target=1.0,
        detail={
            "workflows": pairs[0].workflows,
            "rate per second, by seed": [pair.rate_per_s for pair in pairs],
            f"queued share under {THEIRS}, by seed": shares,
            "by seed": [round(each, 4) for each in by_seed],
        },
    )
    return [
        claim,
        *(_mean_ratio(pairs, metric, key) for metric in METRICS for key in ("mean", "p99")),
    ]


def _mean_ratio(pairs: Sequence[Pair], metric: str, key: str) -> Figure:
    ratios = {app: values(pairs, "ratio", app, metric, key) for app in parts_of(pairs)}
    return Figure(
        name=f"live demo, {key} {METRICS[metric]}, {OURS} over {THEIRS}, mean over seeds",
        value=round(statistics.fmean(ratios["all"]), 4),
        unit="ratio",
        target=None,
        reference=round(PAPER_RATIO, 2) if (metric, key) == ("s_per_token", "mean") else None,
        detail={app: round(statistics.fmean(of_app), 4) for app, of_app in ratios.items()},
    )


def seeds_table(pairs: Sequence[Pair]) -> Table:
    table = Table(title=f"{pairs[0].workflows} workflows, by seed: mean end to end, s")
    for heading in ("seed", "rate per s", f"queued, {THEIRS}", THEIRS, OURS, "ratio"):
        table.add_column(heading, justify="right")
    for pair in pairs:
        ours, theirs = pair.runs[OURS], pair.runs[THEIRS]
        table.add_row(
            str(pair.seed),
            f"{pair.rate_per_s:.3f}",
            f"{theirs['queued_share']:.0%}",
            f"{theirs['e2e_s']['mean']:.1f}",
            f"{ours['e2e_s']['mean']:.1f}",
            f"{pair.ratio['e2e_s']['mean']:.3f}",
        )
    return table


def apps_table(pairs: Sequence[Pair]) -> Table:
    table = Table(title=f"Mean over seeds: {THEIRS}, {OURS}, ratio")
    table.add_column("")
    for metric, key in PANELS:
        table.add_column(f"{METRICS[metric]}, {key}", justify="right")
    for app in parts_of(pairs):
        table.add_row(app, *(_cell(pairs, app, *panel) for panel in PANELS))
    return table


def _cell(pairs: Sequence[Pair], app: str, metric: str, key: str) -> str:
    theirs, ours, ratio = (
        statistics.fmean(values(pairs, policy, app, metric, key))
        for policy in (THEIRS, OURS, "ratio")
    )
    return f"{theirs:.3g}  {ours:.3g}  [bold]{ratio:.2f}"


def draw(pairs: Sequence[Pair], path: Path) -> None:
    """Both metrics, mean and P99, per app: bars of the mean over seeds, a dot for each seed."""
    with picture(path, 2, 2, figsize=(9, 6), layout="constrained") as (figure, grid):
        for axes, (metric, key) in zip(grid.flat, PANELS, strict=True):
            for n, policy in enumerate((THEIRS, OURS)):
                for place, app in enumerate(parts_of(pairs)):
                    by_seed = values(pairs, policy, app, metric, key)
                    at = place + (n - 0.5) * 0.4
                    label = policy if place == 0 else None
                    axes.bar(at, statistics.fmean(by_seed), 0.38, color=f"C{n}", label=label)
                    axes.scatter([at] * len(by_seed), by_seed, s=9, color="black", zorder=2)
            axes.set_xticks(range(len(parts_of(pairs))), parts_of(pairs))
            axes.set_title(f"{METRICS[metric]}: {key}", fontsize="medium")
        handles, labels = grid.flat[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=2)


def main() -> None:
    parser = argparse.ArgumentParser(description=f"The demo live, {OURS} against {THEIRS}.")
    parser.add_argument("--seeds", type=int, default=SEEDS, help=f"how many [{SEEDS}]")
    parser.add_argument("--workflows", type=int, default=WORKFLOWS, help=f"a run [{WORKFLOWS}]")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON instead")
    options = parser.parse_args()
    results = Results(RESULTS / "versus.jsonl", commit(), options.workflows)
    pairs = [results.measured(seed) for seed in range(1, options.seeds + 1)]
    found = figures(pairs)
    add_figures(found)
    draw(pairs, RESULTS / "versus")
    if options.json:
        sys.stdout.buffer.write(msgspec.json.encode(found) + b"\n")
        return
    console = Console()
    if not console.is_terminal:
        console.width = 120
    console.print(seeds_table(pairs), apps_table(pairs))


if __name__ == "__main__":
    main()
