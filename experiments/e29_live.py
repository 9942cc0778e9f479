"""Live: policies before two real vLLM, and what the model had said of each.

The paper's three applications together, through `kairos serve`, as HTTP calls. For the same
workflows at the same instants, two things stand beside each other: what they took on two vLLM
instances on CPU (the model `mid`: random weights; a core each), and what the simulation says that
they take, on a profile that `kairos calibrate` measured on these instances just before. What counts
is the difference that a policy makes: its mean over Parrot's, measured and simulated. Expected:
simulated ratios within 0.1 of the measured ones, and the same order of the policies.

All begin with what a Kairos learnt of a run before, which counts for none. In each repetition,
which has workflows and instants of its own, they run in a random order, so that what else happens
on the machine falls on all alike. Workflows arrive for some 20 s, faster than the engines end them.
Nobody tells how long an answer will be.

A quarter of an hour, and the machine for itself. Needs vLLM (`make install-vllm`).
"""

import asyncio
import sys
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import msgspec
from msgspec.structs import replace

from bench.report import Figure
from experiments.baseline_placements import PLACEMENTS
from experiments.baseline_policies import POLICIES
from experiments.claim import Study, change, table
from experiments.combinations import COMBINATIONS
from experiments.fidelity_engines import Limits, calibrated, engines
from experiments.grids import around
from experiments.placements_vllm import in_turn
from experiments.placements_vllm_run import COUNTING, learnt_pool
from experiments.placements_vllm_workload import offered
from experiments.report import commit, picture
from kairos.core import SECOND, EngineProfile, Interval, RunMetrics
from kairos.simulate import World
from kairos.simulate.plan import instance_id
from kairos.simulate.workload.submissions import in_order
from kairos.simulate.workload.workflows import Submission

COMPARED, BASELINE = ("parrot", "ayo", "kairos, paper", "kairos"), "parrot"
QUICK_COMPARED = ("parrot", "kairos")
MODEL = "mid"
LIMITS = Limits(kv_blocks=96, max_num_seqs=4, max_num_batched_tokens=512, max_model_len=768)
REPETITIONS, WORKFLOWS, QUICK_WORKFLOWS, RATE_PER_S = 6, 72, 48, 4.0
LEARNT_OF = 1000  # the repetition of which all learn before
APART_US = 300 * SECOND  # in the simulation: the run before has ended by then
METRICS = {"e2e_s": "end to end", "s_per_token": "per token"}
SIDES = ("measured", "simulated")

Spread = dict[str, float | None]


class Side(msgspec.Struct, frozen=True, kw_only=True):
    """Of a run: measured or simulated."""

    e2e_s: Spread
    s_per_token: Spread
    preemptions_per_call: float


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """The same submissions under one combination, on both sides."""

    commit: str
    repetition: int  # chooses workflows and instants
    place: int  # among the runs of the repetition, from 1
    combination: str
    workflows: int
    calls: int
    measured: Side
    simulated: Side
    others_cores: float  # that nobody of this run used
    profile: EngineProfile


def measure(quick: bool) -> Iterator[Row]:
    with asyncio.Runner() as runner:
        rows = _rows(quick)
        while (row := runner.run(anext(rows, None))) is not None:
            yield row


async def _rows(quick: bool) -> AsyncIterator[Row]:
    at_commit = commit()
    repetitions, workflows = (1, QUICK_WORKFLOWS) if quick else (REPETITIONS, WORKFLOWS)
    before = offered(workflows, RATE_PER_S, LEARNT_OF)
    async with engines(LIMITS, _tell, model=MODEL, others=COUNTING) as urls:
        pool = await learnt_pool(urls, LIMITS, MODEL, before, "kairos", _tell)
        _tell("calibrating")
        profile = await calibrated(urls, LIMITS)
        for repetition in range(1, repetitions + 1):
            submissions = offered(workflows, RATE_PER_S, repetition)
            compared = QUICK_COMPARED if quick else COMPARED
            for place, name in enumerate(in_turn(compared, repetition), 1):
                policy, placement = COMBINATIONS[name].policy, COMBINATIONS[name].placement
                ran = await pool.run(submissions, placement, policy)
                calls = len(ran.replayed.rows)
                row = Row(
                    commit=at_commit,
                    repetition=repetition,
                    place=place,
                    combination=name,
                    workflows=len(submissions),
                    calls=calls,
                    measured=side_of(ran.replayed.metrics, ran.counts.preemptions / calls),
                    simulated=simulated(profile, before, submissions, policy, placement),
                    others_cores=ran.cores.others,
                    profile=profile,
                )
                _tell(line(row))
                yield row


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def line(row: Row) -> str:
    """What came of it, in short."""
    return (
        f"repetition {row.repetition}, {row.combination}: mean end to end "
        f"{row.measured.e2e_s['mean']:.2f} s, simulated {row.simulated.e2e_s['mean']:.2f} s"
    )


def simulated(
    profile: EngineProfile,
    before: Sequence[Submission],
    submissions: Sequence[Submission],
    policy: str,
    placement: str,
) -> Side:
    """What the model says of the submissions, after it has learnt of those before."""
    offset_us = before[-1].at_us + APART_US
    counted = [replace(each, at_us=each.at_us + offset_us) for each in submissions]
    both = in_order([*before, *counted])
    world = World(
        both,
        {instance_id(number): profile for number in range(2)},
        POLICIES[policy],
        PLACEMENTS[placement],
    )
    world.run()
    metrics = RunMetrics()
    metrics.ended = world.metrics.ended
    metrics.rows = [
        row for row in world.metrics.rows if row.request.workflow_started_at >= offset_us
    ]
    record = metrics.record()
    return side_of(record, record["preemptions_per_call"])


def side_of(record: Mapping[str, Any], preemptions_per_call: float) -> Side:
    """Of a metrics record."""
    return Side(
        e2e_s={name: _rounded(value) for name, value in record["e2e_s"].items()},
        s_per_token={name: _rounded(value) for name, value in record["s_per_token"].items()},
        preemptions_per_call=round(preemptions_per_call, 4),
    )


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.5g}")


def section(rows: Sequence[Row]) -> str:
    names = [name for name in COMPARED if any(row.combination == name for row in rows)]
    parts = []
    for metric, shown in METRICS.items():
        lines = [
            [
                name,
                *(f"{fmean(_means(rows, name, side, metric)):.3g}" for side in SIDES),
                *(
                    "" if name == BASELINE else change(_ratio(rows, name, side, metric))
                    for side in SIDES
                ),
                *(f"{fmean(_preempted(rows, name, side)):.3f}" for side in SIDES),
            ]
            for name in names
        ]
        header = [f"mean {shown}, s", *SIDES, *(f"{each}: / {BASELINE}, %" for each in SIDES)]
        parts.append(table([*header, *(f"{each}: preemptions a call" for each in SIDES)], lines))
    repetitions, others = len({row.repetition for row in rows}), fmean(r.others_cores for r in rows)
    parts.append(
        f"{repetitions} repetitions of {rows[0].workflows} workflows; others used "
        f"{others:.2f} cores of the machine."
    )
    return "\n\n".join(parts)


def _means(rows: Sequence[Row], name: str, side: str, metric: str) -> list[float]:
    """By repetition."""
    return [
        getattr(getattr(row, side), metric)["mean"]
        for row in sorted(rows, key=lambda each: each.repetition)
        if row.combination == name
    ]


def _preempted(rows: Sequence[Row], name: str, side: str) -> list[float]:
    return [getattr(row, side).preemptions_per_call for row in rows if row.combination == name]


def _ratio(rows: Sequence[Row], name: str, side: str, metric: str) -> Interval:
    return around(_ratios(rows, name, side, metric))


def _ratios(rows: Sequence[Row], name: str, side: str, metric: str) -> list[float]:
    """To the baseline, in the same repetitions."""
    pairs = zip(_means(rows, name, side, metric), _means(rows, BASELINE, side, metric), strict=True)
    return [ours / theirs for ours, theirs in pairs]


def figures(rows: Sequence[Row], on: str = "real vLLM") -> list[Figure]:
    """What a policy is worth, measured; beside it what the model says."""
    return [
        Figure(
            name=f"{on}, mean {shown}, {name} over {BASELINE}",
            value=round(_ratio(rows, name, "measured", metric).mean, 4),
            unit="ratio",
            target=1.0 if name == "kairos" else None,
            detail={
                "simulated": round(_ratio(rows, name, "simulated", metric).mean, 4),
                "95 %": msgspec.to_builtins(_ratio(rows, name, "measured", metric)),
            },
        )
        for name in COMPARED
        if name != BASELINE and any(row.combination == name for row in rows)
        for metric, shown in METRICS.items()
    ]


def draw(rows: Sequence[Row], path: Path) -> None:
    """Ratios to the baseline, measured and simulated: bars of the mean, a dot a repetition."""
    names = [n for n in COMPARED if n != BASELINE and any(row.combination == n for row in rows)]
    with picture(path, 1, len(METRICS), figsize=(9, 3.6)) as (figure, panels):
        for axes, (metric, shown) in zip(panels, METRICS.items(), strict=True):
            for n, side in enumerate(SIDES):
                for place, name in enumerate(names):
                    by_run = _ratios(rows, name, side, metric)
                    at = place + (n - 0.5) * 0.4
                    label = side if place == 0 else None
                    axes.bar(at, fmean(by_run), 0.38, color=f"C{n}", alpha=0.7, label=label)
                    axes.scatter([at] * len(by_run), by_run, s=7, color="black", zorder=2)
            axes.axhline(1, color="grey", linewidth=0.8)
            axes.set_xticks(range(len(names)), names)
            axes.set_title(f"mean {shown}, over {BASELINE}", fontsize="medium")
        panels[-1].legend(fontsize="small", loc="upper right")
        figure.tight_layout()


STUDY = Study(
    title="Live: real vLLM, and what the model had said",
    row=Row,
    measure=measure,
    section=section,
    draw=draw,
    figures=figures,
)
