"""A user's own traffic: what would another policy have done to yesterday?

`kairos export` writes what a Kairos served as a workflow file, which says when each workflow began,
and `kairos simulate --workflows` sends them at these instants to models of engines, under another
policy. How true is the answer? Here "yesterday" is itself simulated, first come, first served, to
each instance in turn, so that it can be run again under the other policy as it would really have
gone: the same workflows, of which an export knows only what was seen. Expected: the mean predicted
within 5 %. What an export cannot know is what prompts would have shared on other instances.
"""

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from statistics import fmean

import msgspec

from bench.report import Figure
from experiments.baseline_placements import PLACEMENTS
from experiments.baseline_policies import POLICIES
from experiments.claim import Study, table
from experiments.rates import rates
from experiments.report import commit, picture
from experiments.workloads import WORKLOADS
from kairos.cli.simulate import LOG_FILES
from kairos.core import SECOND, EngineProfile, Observer
from kairos.observe import FactLog
from kairos.simulate import Load, World, export_workflows, offered_workload
from kairos.simulate.workload.workflows import Submission

WORKLOAD, LOAD, SEEDS = "colocated-13b", "middle", 5
SERVED, OTHER = ("fcfs", "round-robin"), ("kairos", "kairos")
WAS, PREDICTED, TRUE = "as it was", "predicted from the export", "as it would have been"
BINS = 24  # of the picture

Times = dict[str, tuple[float, float]]  # by workflow: when it began, and how long it took, in s


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One yesterday. Means end to end, s; of the first seed also their course."""

    commit: str
    seed: int
    workflows: int
    means: dict[str, float]
    course: dict[str, list[tuple[float, float]]]  # start, s; mean of those that began then, s


def measure(quick: bool) -> Iterator[Row]:
    at_commit, workload, at = commit(), WORKLOADS[WORKLOAD], rates()[WORKLOAD][LOAD]
    for seed in range(1, 2 if quick else SEEDS + 1):
        planned = workload.submissions(at.rate_per_s, at.workflows, seed)
        times = yesterdays(planned, workload.instances())
        yield Row(
            commit=at_commit,
            seed=seed,
            workflows=len(planned),
            means={name: round(fmean(s for _, s in of.values()), 3) for name, of in times.items()},
            course={name: course(of) for name, of in times.items()} if seed == 1 else {},
        )


def yesterdays(
    planned: Sequence[Submission], instances: Mapping[str, EngineProfile]
) -> dict[str, Times]:
    """What was, what the export of it says of another policy, and what that would really do."""
    with tempfile.TemporaryDirectory() as directory:
        log, exported = Path(directory) / "log", Path(directory) / "day.jsonl"
        with closing(FactLog(log, max_files=LOG_FILES)) as facts:
            was = played(planned, instances, SERVED, facts)
        export_workflows(log, None, exported)
        again, _ = offered_workload(Load(workflows=exported)).of(1)
    return {
        WAS: was,
        PREDICTED: played(again, instances, OTHER),
        TRUE: played(planned, instances, OTHER),
    }


def played(
    planned: Sequence[Submission],
    instances: Mapping[str, EngineProfile],
    decided: tuple[str, str],
    *observers: Observer,
) -> Times:
    policy, placement = decided
    world = World(planned, instances, POLICIES[policy], PLACEMENTS[placement], observers=observers)
    world.run()
    ended = {workflow_id: at for (_, workflow_id), at in world.metrics.ended.items()}
    return {
        each.workflow.id: (
            each.at_us / SECOND,
            (ended[each.workflow.id] - each.at_us) / SECOND,
        )
        for each in planned
    }


def course(times: Times) -> list[tuple[float, float]]:
    """Means of equally many workflows, in the order in which they began."""
    ordered = sorted(times.values())
    edges = [round(n * len(ordered) / BINS) for n in range(BINS + 1)]
    parts = [ordered[begin:end] for begin, end in pairwise(edges) if end > begin]
    return [
        (round(fmean(at for at, _ in part), 1), round(fmean(took for _, took in part), 2))
        for part in parts
    ]


def section(rows: Sequence[Row]) -> str:
    lines = [
        [
            f"seed {row.seed}",
            *(f"{row.means[name]:.1f}" for name in (WAS, PREDICTED, TRUE)),
            f"{100 * (row.means[PREDICTED] / row.means[TRUE] - 1):+.1f}",
        ]
        for row in rows
    ]
    return table(["mean end to end, s", WAS, PREDICTED, TRUE, "prediction off by, %"], lines)


def figures(rows: Sequence[Row]) -> list[Figure]:
    off = [abs(row.means[PREDICTED] / row.means[TRUE] - 1) for row in rows]
    return [
        Figure(
            name="what an export says of another policy, mean end-to-end latency, off at most",
            value=round(max(off), 4),
            unit="share",
            target=0.05,
            detail={"by seed": [round(each, 4) for each in off]},
        )
    ]


def draw(rows: Sequence[Row], path: Path) -> None:
    with picture(path, figsize=(9, 3.6)) as (figure, axes):
        for name, style in ((WAS, "-"), (PREDICTED, "-"), (TRUE, "--")):
            axes.plot(*zip(*rows[0].course[name], strict=True), style, label=name)
        axes.set_xlabel("a workflow's begin, s")
        axes.set_ylabel("mean end to end, s")
        axes.set_ylim(bottom=0)
        axes.legend()
        axes.set_title(f"served {' + '.join(SERVED)}; asked about {' + '.join(OTHER)}")
        figure.tight_layout()


STUDY = Study(
    title="What would another policy have done to yesterday?",
    row=Row,
    measure=measure,
    section=section,
    draw=draw,
    figures=figures,
)
