"""`python -m experiments.versus`: the same tasks, live, under `kairos` and under `fcfs`.

Claim: least remaining work first, learnt within the run itself, gives the demo's three applications
a lower mean end-to-end latency than first come, first served, in each of five seeds, where calls
spend half of their workflows' time in the queue (Kairos paper, 7.4, sets the load so; its priority
scheduling is then 1.63 times as fast, a ratio of 0.61). Expect 0.7 to 0.9 of the end-to-end mean,
and less of the seconds per token: short workflows no longer wait behind long ones. The long ones,
cg, pay for it, so look at each application and at P99.

First the rate at which the queued share under `fcfs` is a half, by bisection on the first seed.
Then, for each seed, `kairos demo --engine sim --policy kairos --versus fcfs`. All of it is real:
gateway, HTTP, agents, sandboxed code, the clock; but the engines are two stand-ins of four slots,
as fast as a small model on one core and with the lengths of the recorded run
(`traces/demo-smollm2.jsonl.gz`). How often cg's code fails is the stand-ins' script, not that run,
in which it always does. So it takes real time, 4 to 5 minutes a seed, and little CPU.

Writes experiments/results/versus.jsonl and its picture, and figures of experiments/report.json. Run
again at the same commit, it goes on where it was broken off.
"""

import argparse
import json
import math
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table

from bench.report import Figure
from experiments.report import RESULTS, add_figures, commit, write_rows

OURS, THEIRS = "kairos", "fcfs"
SEEDS = 5
WORKFLOWS = 120
RATES = (0.5, 2.0)  # workflows per second; the two engines serve about 1.05
HALF, TOLERANCE = 0.5, 0.05
MAX_PROBES = 8
TIME_LIMIT_S = 3_600
PAPER_RATIO = 1 / 1.63  # 7.4, figure 18, where queueing takes half of the time
METRICS = {"e2e_s": "end to end, s", "s_per_token": "s per generated token"}
PANELS = [(metric, key) for metric in METRICS for key in ("mean", "p99")]


class Probe(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """How much of the time is queueing under `fcfs`, at a rate."""

    commit: str
    seed: int
    workflows: int
    rate_per_s: float
    queued_share: float


class Pair(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """One seed under both policies: the comparison record of the demo."""

    commit: str
    seed: int
    workflows: int
    rate_per_s: float
    runs: dict[str, dict[str, Any]]
    ratio: dict[str, Any]


class Results:
    """The rows of this commit and number of workflows; each is kept as soon as it is known."""

    def __init__(self, path: Path, at_commit: str, workflows: int) -> None:
        self._path, self._commit, self._workflows = path, at_commit, workflows
        known = path.read_bytes().splitlines() if path.exists() else []
        rows = [msgspec.json.decode(line, type=Probe | Pair) for line in known]
        # A `+` aside: what this writes is tracked too, and makes a clean tree a changed one.
        same = [row for row in rows if row.commit.rstrip("+") == at_commit.rstrip("+")]
        self._rows = [row for row in same if row.workflows == workflows]

    def pairs(self, rate_per_s: float) -> list[Pair]:
        found = [r for r in self._rows if isinstance(r, Pair) and r.rate_per_s == rate_per_s]
        return sorted(found, key=lambda pair: pair.seed)

    def queued_share(self, seed: int, rate_per_s: float) -> float:
        for row in self._rows:
            if isinstance(row, Probe) and (row.seed, row.rate_per_s) == (seed, rate_per_s):
                return row.queued_share
        record = run_demo(seed, self._workflows, rate_per_s, "--policy", THEIRS)
        share: float = record["queued_share"]
        self._keep(Probe(**self._parameters(seed, rate_per_s), queued_share=share))
        return share

    def measure(self, seed: int, rate_per_s: float) -> None:
        if all(pair.seed != seed for pair in self.pairs(rate_per_s)):
            policies = ("--policy", OURS, "--versus", THEIRS)
            record = run_demo(seed, self._workflows, rate_per_s, *policies)
            self._keep(Pair(**self._parameters(seed, rate_per_s), **record))

    def _parameters(self, seed: int, rate_per_s: float) -> dict[str, Any]:
        return {
            "commit": self._commit,
            "seed": seed,
            "workflows": self._workflows,
            "rate_per_s": rate_per_s,
        }

    def _keep(self, row: Probe | Pair) -> None:
        self._rows.append(row)
        write_rows(self._path, self._rows)


def run_demo(seed: int, workflows: int, rate_per_s: float, *policies: str) -> dict[str, Any]:
    """What `kairos demo --json` prints. Whatever fails in it fails the experiment."""
    options = {
        "--engine": "sim",
        "--workflows": workflows,
        "--rate": rate_per_s,
        "--seed": seed,
        "--time-limit": TIME_LIMIT_S,
    }
    words = [str(word) for option in options.items() for word in option]
    command = [sys.executable, "-m", "kairos.cli", "demo", *words, *policies, "--json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=False)  # noqa: S603 (ourselves)
    if done.returncode != 0:
        sys.exit(f"experiments.versus: {' '.join(command[2:])} ended with {done.returncode}")
    record: dict[str, Any] = json.loads(done.stdout)
    return record


def rate_of_half(share_at: Callable[[float], float]) -> float:
    """The rate, of 3 decimals, at which the share, which grows with the rate, is about a half."""
    low, high = RATES
    for _ in range(MAX_PROBES):
        rate = round(math.sqrt(low * high), 3)
        share = share_at(rate)
        if abs(share - HALF) <= TOLERANCE:
            return rate
        low, high = (rate, high) if share < HALF else (low, rate)
    sys.exit(f"experiments.versus: no rate between {RATES[0]} and {RATES[1]} queues half the time")


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
            "rate_per_s": pairs[0].rate_per_s,
            "workflows": pairs[0].workflows,
            "seeds": [pair.seed for pair in pairs],
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
    table = Table(
        title=f"{pairs[0].workflows} workflows at {pairs[0].rate_per_s} a second, by seed"
    )
    for heading in ("seed", f"queued, {THEIRS}", f"{THEIRS}, mean s", f"{OURS}, mean s", "ratio"):
        table.add_column(heading, justify="right")
    for pair in pairs:
        ours, theirs = pair.runs[OURS], pair.runs[THEIRS]
        table.add_row(
            str(pair.seed),
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
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams["svg.hashsalt"] = "kairos"  # the same figures give the same bytes
    from matplotlib import pyplot as plt

    figure, grid = plt.subplots(2, 2, figsize=(9, 6), layout="constrained")
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
    figure.savefig(path.with_suffix(".png"), dpi=130)
    figure.savefig(path.with_suffix(".svg"), metadata={"Date": None})
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=f"The demo live, {OURS} against {THEIRS}.")
    parser.add_argument("--seeds", type=int, default=SEEDS, help=f"how many [{SEEDS}]")
    parser.add_argument("--workflows", type=int, default=WORKFLOWS, help=f"a run [{WORKFLOWS}]")
    parser.add_argument("--rate", type=float, help="workflows per second, instead of the search")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON instead")
    options = parser.parse_args()
    results = Results(RESULTS / "versus.jsonl", commit(), options.workflows)
    rate = options.rate or rate_of_half(lambda rate: results.queued_share(1, rate))
    for seed in range(1, options.seeds + 1):
        results.measure(seed, rate)
    pairs = results.pairs(rate)
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
