"""Measure whether LLM calls gain by Ayo's order by depth (its algorithm 2) at the gateway.

Six workloads at their high loads, before Kairos' placement, so that nothing but the order differs:
Kairos' order (least work left of the workflow), and `ayo-published`: of each workflow the calls
with most stages to come, workflows as they came. Mean and P99 of workflows' end-to-end times.
Expected: Kairos' order at least as good, since what a call's follower waits for is a part of the
work that it reckons. Left out: real engines. Ten minutes of one core.
"""

from collections.abc import Iterator, Sequence
from statistics import fmean

import msgspec

from bench.report import Figure
from experiments.baselines import AYO_PUBLISHED, DEFAULT
from experiments.claim import Study, table
from experiments.rates import rates
from experiments.report import commit
from experiments.runs import Cell, run

WORKLOADS = ("colocated-8b", "colocated-13b", "claude_code", "tau_bench", "magentic_one", "ag2")
SEEDS, WORKFLOWS, FEW = (1, 2, 3), 300, 30
_NO_WORSE = 0.1


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """A pair of runs on one seed. Times in seconds."""

    commit: str
    workload: str
    rate_per_s: float
    seed: int
    kairos_mean_s: float
    ayo_mean_s: float
    kairos_p99_s: float
    ayo_p99_s: float
    queued_share: float


def measure(quick: bool) -> Iterator[Row]:
    at_commit, known = commit(), rates()
    for workload in WORKLOADS[:1] if quick else WORKLOADS:
        rate = known[workload]["high"].rate_per_s
        for seed in SEEDS[:1] if quick else SEEDS:
            ours, theirs = (
                run(
                    Cell(
                        workload=workload,
                        rate_per_s=rate,
                        workflows=FEW if quick else WORKFLOWS,
                        policy=policy,
                        placement=DEFAULT,
                        seed=seed,
                    )
                )
                for policy in (DEFAULT, AYO_PUBLISHED)
            )
            yield Row(
                commit=at_commit,
                workload=workload,
                rate_per_s=rate,
                seed=seed,
                kairos_mean_s=ours.e2e_s["mean"] or 0.0,
                ayo_mean_s=theirs.e2e_s["mean"] or 0.0,
                kairos_p99_s=ours.e2e_s["p99"] or 0.0,
                ayo_p99_s=theirs.e2e_s["p99"] or 0.0,
                queued_share=theirs.queued_share or 0.0,
            )


def over(rows: Sequence[Row], workload: str) -> tuple[float, float, float]:
    """Return Kairos' mean over Ayo's in %: the least of the seeds, their mean, and the most."""
    found = [
        100 * (row.kairos_mean_s / row.ayo_mean_s - 1) for row in rows if row.workload == workload
    ]
    return min(found), fmean(found), max(found)


def section(rows: Sequence[Row]) -> str:
    lines = []
    for workload in dict.fromkeys(row.workload for row in rows):
        of = [row for row in rows if row.workload == workload]
        least, mean, most = over(rows, workload)
        tail = fmean(100 * (row.kairos_p99_s / row.ayo_p99_s - 1) for row in of)
        lines.append(
            [
                workload,
                f"{of[0].rate_per_s:g}",
                f"{fmean(row.queued_share for row in of):.2f}",
                f"{fmean(row.ayo_mean_s for row in of):.1f}",
                f"{fmean(row.kairos_mean_s for row in of):.1f}",
                f"{mean:+.1f} [{least:+.1f}, {most:+.1f}]",
                f"{tail:+.1f}",
            ]
        )
    heads = ["workflows/s", "queued", "Ayo, s", "Kairos, s", "Kairos over it, mean %", "P99 %"]
    return table(["workload", *heads], lines)


def figures(rows: Sequence[Row]) -> list[Figure]:
    worst = max(over(rows, each)[1] for each in {row.workload for row in rows})
    name = "Kairos' order over Ayo's by depth, mean, worst workload"
    return [Figure(name=name, value=round(worst, 1), unit="%", target=_NO_WORSE)]


STUDY = Study(
    title="Depth as the order of LLM calls",
    row=Row,
    measure=measure,
    section=section,
    figures=figures,
)
