"""Measure placements on pools whose instances have room for few calls.

The paper's applications together (Llama-2-13B on four A40s), first come first served, with the KV
memory of each instance, and half and a quarter of it: 5,000 tokens, where a call takes 1,000 and
more. Rates fall with the memory. Mean and P99 of workflows' end-to-end times, as ratios to round
robin on the same seeds.
Expected: the default nowhere more than 3 % slower than round robin in the mean. Left out: real
engines. Three minutes of one core.
"""

from collections.abc import Iterator, Sequence
from statistics import fmean
from typing import Any

import msgspec
from msgspec.structs import replace

from bench.report import Figure
from experiments.baselines import made
from experiments.claim import Study, table
from experiments.report import commit
from experiments.workloads import WORKLOADS
from kairos.simulate import World

PLACEMENTS = ("round-robin", "time-slot", "least-kv", "kairos")
RATES = (1.8, 2.7)  # workflows per second, where the memory is whole
PARTS = (1, 2, 4)  # one in how many of the memory
SEEDS, WORKFLOWS, FEW = (1, 2, 3), 300, 40
_SLOWER = 3.0


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """A run. Times in seconds."""

    commit: str
    part: int
    rate_per_s: float
    placement: str
    seed: int
    mean_s: float
    p99_s: float
    preemptions_per_call: float
    queued_share: float


def measure(quick: bool) -> Iterator[Row]:
    at_commit = commit()
    for part in PARTS[-1:] if quick else PARTS:
        for rate in RATES[:1] if quick else RATES:
            for seed in SEEDS[:1] if quick else SEEDS:
                for placement in PLACEMENTS:
                    count = FEW if quick else WORKFLOWS
                    found = run(part, rate / part, count, placement, seed)
                    yield Row(
                        commit=at_commit,
                        part=part,
                        rate_per_s=rate,
                        placement=placement,
                        seed=seed,
                        mean_s=found["e2e_s"]["mean"],
                        p99_s=found["e2e_s"]["p99"],
                        preemptions_per_call=found["preemptions_per_call"],
                        queued_share=found["queued_share"] or 0.0,
                    )


def run(part: int, rate_per_s: float, count: int, placement: str, seed: int) -> dict[str, Any]:
    """Simulate the workflows; return the run's figures."""
    workload = WORKLOADS["colocated-13b"]
    planned = workload.submissions(rate_per_s, count, seed)
    engine = workload.engine()
    tokens = engine.kv_tokens // part // engine.block_size * engine.block_size
    engine = replace(engine, kv_tokens=tokens)
    policy, chosen = made("fcfs", placement, planned, engine)
    world = World(planned, dict.fromkeys(workload.instances(), engine), policy, chosen)
    world.run()
    return world.metrics.record(failed=set())


def _compared(rows: Sequence[Row], part: int, rate: float, placement: str) -> tuple[float, float]:
    """Return how much slower than round robin, in %: mean and P99."""
    of = {
        (row.placement, row.seed): row for row in rows if (row.part, row.rate_per_s) == (part, rate)
    }
    seeds = [seed for name, seed in of if name == placement]
    pairs = [(of[placement, seed], of["round-robin", seed]) for seed in seeds]
    means = fmean(own.mean_s / theirs.mean_s for own, theirs in pairs)
    return 100 * (means - 1), 100 * (fmean(a.p99_s / b.p99_s for a, b in pairs) - 1)


def _settings(rows: Sequence[Row]) -> list[tuple[int, float]]:
    return list(dict.fromkeys((row.part, row.rate_per_s) for row in rows))


def section(rows: Sequence[Row]) -> str:
    lines = []
    for part, rate in _settings(rows):
        for placement in PLACEMENTS:
            of = [r for r in rows if (r.part, r.rate_per_s, r.placement) == (part, rate, placement)]
            mean, p99 = _compared(rows, part, rate, placement)
            lines.append(
                [
                    f"1/{part} of the memory, {rate:g}/{part} workflows per second: {placement}",
                    f"{fmean(r.mean_s for r in of):.1f}",
                    f"{mean:+.1f}",
                    f"{p99:+.1f}",
                    f"{fmean(r.preemptions_per_call for r in of):.2f}",
                    f"{fmean(r.queued_share for r in of):.2f}",
                ]
            )
    heads = ["mean, s", "%", "P99, %", "preemptions per call", "share of the time in the queue"]
    return table(["", *heads], lines)


def figures(rows: Sequence[Row]) -> list[Figure]:
    worst = max(_compared(rows, part, rate, "kairos")[0] for part, rate in _settings(rows))
    name = "the default placement slower than round robin where memory is little, mean, at worst"
    return [Figure(name=name, value=round(worst, 1), unit="%", target=_SLOWER)]


STUDY = Study(
    title="Placements where memory has room for few calls",
    row=Row,
    measure=measure,
    section=section,
    figures=figures,
)
