"""`python -m experiments.placements`: every placement on the same calls, in virtual time.

Claims, for the default placement `kairos` and mean end-to-end latency: on the paper's co-located
applications it is within 3 % of the same placement with every answer's length known; it is no worse
than `least-kv` anywhere, beyond noise; and on recorded coding agents, whose prompts are mostly
prefixes that an instance may hold, it is 15 % or more quicker than `least-kv` at high load, and
quicker than `affinity`, which goes by prefixes alone.

What runs: the workloads of `placements_workloads.py` on modelled A40, each at three loads
(`placements_rates.py`: 10, 50 and 70 % of the time in the queue, under `fcfs` and `round-robin`),
under the policy `kairos`, which learns within the run, ten seeds. Intervals are paired: of the
ratios by seed. It takes an hour of two cores; run again with the same code, it goes on where it was
broken off. `--quick`: two seeds of a third of the workflows, which see less load.

Writes experiments/results/placements.jsonl and its picture, and figures of experiments/report.json;
a part of it (--only, --load, ...) writes its rows to results/placements-partial.jsonl alone:

    python -m experiments.placements --only claude_code --load high --placements kairos,least-kv
"""

import argparse
import os
import sys
from collections.abc import Sequence

import msgspec
from rich.console import Console

from experiments.placements_rates import LOADS, Rates, find, rates
from experiments.placements_runs import COMPARED, DEFAULT, Cell, Results, Row, code, in_parallel
from experiments.placements_show import draw, figures, grid, table
from experiments.placements_workloads import WORKLOADS
from experiments.report import RESULTS, add_figures, commit
from kairos.scheduler.policies import POLICIES

SEEDS, QUICK_SEEDS, QUICK_PART = 10, 2, 3
POLICY = "kairos"
ROWS, PARTIAL = RESULTS / "placements.jsonl", RESULTS / "placements-partial.jsonl"


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be run."""

    workloads: tuple[str, ...] = tuple(WORKLOADS)
    loads: tuple[str, ...] = tuple(LOADS)
    placements: tuple[str, ...] = COMPARED
    policy: str = POLICY
    seeds: int = SEEDS
    quick: bool = False

    def cells(self, known: Rates) -> list[tuple[str, Cell]]:
        """Each with its load."""
        part = QUICK_PART if self.quick else 1
        return [
            (
                load,
                Cell(
                    workload=workload,
                    rate_per_s=known[workload][load].rate_per_s,
                    workflows=known[workload][load].workflows // part,
                    policy=self.policy,
                    placement=placement,
                    seed=seed,
                ),
            )
            for workload in self.workloads
            for load in self.loads
            for seed in range(1, self.seeds + 1)
            for placement in self.placements
        ]


def run_missing(cells: Sequence[Cell], results: Results, processes: int) -> None:
    missing = [cell for cell in dict.fromkeys(cells) if cell not in results.rows]
    at_commit, shown = commit(), sys.stderr.isatty()
    for done, (cell, outcome) in enumerate(in_parallel(missing, processes), 1):
        results.add(Row(commit=at_commit, code=code(), cell=cell, outcome=outcome))
        if shown:
            end = "\n" if done == len(missing) else ""
            print(f"\r{done}/{len(missing)} runs", end=end, file=sys.stderr, flush=True)


def main() -> None:
    options = _parser().parse_args()
    if options.find_rates:
        for name in options.only or WORKLOADS:
            find(WORKLOADS[name], options.processes, lambda line: print(line, flush=True))
        return
    asked = _asked(options)
    known = rates()
    if unknown := [name for name in asked.workloads if name not in known]:
        sys.exit(f"no rates of {', '.join(unknown)}: find them with --find-rates")
    cells = asked.cells(known)
    is_whole = asked == Asked()
    path, other = (ROWS, PARTIAL) if is_whole else (PARTIAL, ROWS)
    results = Results(path) if options.fresh else Results(path, other, path)
    run_missing([cell for _, cell in cells], results, options.processes)
    found = grid([(load, results.rows[cell]) for load, cell in cells])
    if is_whole:
        claims = figures(found)
        add_figures(claims)
        draw(found)
        if options.json:
            print(msgspec.json.encode(claims).decode())
            return
    console = Console(width=170)
    for workload, load in found:
        console.print(table(found, workload, load, options.against or asked.placements[0]))


def _asked(options: argparse.Namespace) -> Asked:
    seeds = options.seeds or (QUICK_SEEDS if options.quick else SEEDS)
    placements = tuple(options.placements.split(",")) if options.placements else COMPARED
    if unknown := set(placements) - set(COMPARED):
        sys.exit(f"no placement is called {', '.join(sorted(unknown))}: {', '.join(COMPARED)}")
    return Asked(
        workloads=tuple(options.only or WORKLOADS),
        loads=tuple(options.load or LOADS),
        placements=placements,
        policy=options.policy,
        seeds=seeds,
        quick=options.quick,
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Every placement on the same calls.")
    add = parser.add_argument
    add("--only", action="append", choices=WORKLOADS, help="this workload; may be repeated")
    add("--load", action="append", choices=LOADS, help="this load; may be repeated")
    add("--placements", metavar="A,B", help=f"of: {', '.join(COMPARED)}")
    add("--against", choices=COMPARED, default=DEFAULT, help=f"whose ratios are shown [{DEFAULT}]")
    add("--policy", choices=POLICIES, default=POLICY, help=f"[{POLICY}]")
    add("--seeds", type=int, help=f"how many [{SEEDS}]")
    add("--quick", action="store_true", help="two seeds of a third of the workflows")
    add("--fresh", action="store_true", help="forget what is known of this code")
    add("--processes", type=int, default=os.cpu_count() or 1, help="at once [as many as cores]")
    add("--find-rates", action="store_true", help="find the rates anew, and do nothing else")
    add("--json", action="store_true", help="print the figures as JSON instead of the tables")
    return parser


if __name__ == "__main__":
    main()
