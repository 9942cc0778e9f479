"""Figure 8 (2.2.2): do requests that are served sooner take less time? Ranks of both, per policy.

The paper, at 8 requests per second: under first come, first served, and by depth, a request's rank
by queueing time says nothing about its rank by inference latency; it gives no number. Here it is
Spearman's correlation of the two, and of queueing time with what is left of the request's workflow,
of requests that waited, at middle load. Expected: none under `fcfs`; under `ayo` with what is left
rather than with the request's own latency; under `kairos` with what is left, clearly.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from statistics import fmean

import msgspec
import numpy as np

from experiments.baselines import made, true_remaining_us
from experiments.claim import Study, table
from experiments.rates import rates
from experiments.report import commit, picture
from experiments.workloads import WORKLOADS
from kairos.simulate import World

WORKLOAD, LOAD, SEEDS, DRAWN = "colocated-8b", "middle", 5, 400
POLICIES = ("fcfs", "ayo", "wasserstein-mds", "kairos")


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One run. Points are ranks, as shares: by queueing time, and by inference latency."""

    commit: str
    policy: str
    seed: int
    requests: int  # that waited
    with_own: float  # Spearman's correlation of queueing time with inference latency
    with_left: float  # and with what is left of the workflow
    points: list[tuple[float, float]]


def measure(quick: bool) -> Iterator[Row]:
    at_commit, workload, at = commit(), WORKLOADS[WORKLOAD], rates()[WORKLOAD][LOAD]
    workflows = at.workflows // 3 if quick else at.workflows
    for seed in range(1, 2 if quick else SEEDS + 1):
        planned = workload.submissions(at.rate_per_s, workflows, seed)
        left_us = true_remaining_us(planned, workload.engine())
        for policy in POLICIES:
            world = World(
                planned,
                workload.instances(),
                *made(policy, "round-robin", planned, workload.engine()),
            )
            world.run()
            waited = [row for row in world.metrics.rows if row.queued_us > 0]
            queued = ranks([row.queued_us for row in waited])
            own = ranks([(row.ended_at or 0) - (row.dispatched_at or 0) for row in waited])
            left = ranks([left_us[row.request.id] for row in waited])
            chosen = Random(seed).sample(range(len(waited)), min(DRAWN, len(waited)))  # noqa: S311
            yield Row(
                commit=at_commit,
                policy=policy,
                seed=seed,
                requests=len(waited),
                with_own=correlation(queued, own),
                with_left=correlation(queued, left),
                points=[(round(queued[n], 3), round(own[n], 3)) for n in chosen],
            )


def ranks(values: Sequence[float]) -> list[float]:
    """From 0 to 1; equal values share the mean of their ranks."""
    from scipy.stats import rankdata  # half a second, which every other experiment would pay

    found: list[float] = ((rankdata(values) - 1) / max(1, len(values) - 1)).tolist()
    return found


def correlation(one: Sequence[float], other: Sequence[float]) -> float:
    return round(float(np.corrcoef(one, other)[0, 1]), 4)


def section(rows: Sequence[Row]) -> str:
    lines = [
        [
            policy,
            _spread([row.with_own for row in rows if row.policy == policy]),
            _spread([row.with_left for row in rows if row.policy == policy]),
        ]
        for policy in POLICIES
    ]
    return table(["policy", "with its own latency", "with what is left of its workflow"], lines)


def _spread(values: Sequence[float]) -> str:
    return f"{fmean(values):+.2f} [{min(values):+.2f}, {max(values):+.2f}]"


def draw(rows: Sequence[Row], path: Path) -> None:
    layout = {"figsize": (3 * len(POLICIES), 3.3), "sharey": True}
    with picture(path, 1, len(POLICIES), **layout) as (figure, panels):
        for axes, policy in zip(panels, POLICIES, strict=True):
            first = next(row for row in rows if row.policy == policy)
            axes.scatter(*zip(*first.points, strict=True), s=4)
            axes.set_title(policy, fontsize="medium")
            axes.set_xlabel("rank by queueing time")
        panels[0].set_ylabel("rank by inference latency")
        figure.tight_layout()


STUDY = Study(
    title="Figure 8: ranks by queueing time and by latency",
    row=Row,
    measure=measure,
    section=section,
    draw=draw,
)
