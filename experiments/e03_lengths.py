"""Figures 3 to 6 (2.1.3): how long agents' answers are, and how long their calls take.

The paper: agents differ much, each keeps to its lengths on other data sets, the mathematics agent's
calls take up to 25.1 times as long as the router's, and over 96.6 % of the time is decoding. It
draws the distributions and names no other value.

Not reproduced: lengths by Llama-3-8B itself, which no machine of ours runs. Those of the generative
models are inputs, made to fit what the paper says (their sources stand beside them), so only what
the engine model makes of them is a result: latencies, and the share of decoding. Beside them stand
agents that were recorded, of 30 calls or more: the same applications on a real, small model, and
real agents.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import numpy as np

from experiments.claim import Study, table
from experiments.recordings import read_apps, recordings
from experiments.report import commit, picture
from experiments.workload import COMPUTE_BINDS, Workload
from kairos.core import PLACEMENTS, POLICIES, SECOND, CallRow
from kairos.simulate import World

MODELS = ("qa", "rg", "cg", "qa-ss", "rg-nq", "cg-mbpp")
WORKFLOWS, QUICK_WORKFLOWS, RATE_PER_S = 300, 30, 0.02  # so rarely that calls run alone
PERCENTS = (10, 50, 90)
LEAST_CALLS = 30  # of a recorded agent that is shown


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One agent. Percentiles: 10, 50, 90."""

    commit: str
    source: str  # `model`, where lengths are inputs; `recorded`
    app: str
    agent: str
    calls: int
    completion_tokens: tuple[float, float, float]
    mean_completion_tokens: float
    latency_s: tuple[float, float, float] | None = None  # of a call alone on an A40, modelled
    mean_latency_s: float | None = None
    decode_share: float | None = None  # of the latency: from the first token on


def measure(quick: bool) -> Iterator[Row]:
    at_commit = commit()
    for app in MODELS:
        yield from _modelled(app, QUICK_WORKFLOWS if quick else WORKFLOWS, at_commit)
    for app, workflows in read_apps(*recordings()).items():
        by_agent: dict[str, list[int]] = {}
        for call in (call for workflow in workflows for call in workflow):
            by_agent.setdefault(call.agent, []).append(call.completion_tokens)
        for agent, lengths in by_agent.items():
            if len(lengths) < LEAST_CALLS:
                continue
            yield _row("recorded", app, agent, lengths, at_commit)


def _modelled(app: str, workflows: int, at_commit: str) -> Iterator[Row]:
    alone = Workload(
        name=app, apps=((app, 1.0),), profile=COMPUTE_BINDS, workflows=workflows, pool=1
    )
    planned = alone.submissions(RATE_PER_S, workflows, seed=1)
    world = World(planned, alone.instances(), POLICIES["fcfs"], PLACEMENTS["least-kv"])
    world.run()
    by_agent: dict[str, list[CallRow]] = {}
    for row in world.metrics.rows:
        by_agent.setdefault(row.request.agent or "", []).append(row)
    for agent, rows in by_agent.items():
        took_s = [_between_s(row.dispatched_at, row.ended_at) for row in rows]
        decoding_s = [_between_s(row.first_token_at, row.ended_at) for row in rows]
        lengths = [row.completion_tokens or 0 for row in rows]
        yield msgspec.structs.replace(
            _row("model", app, agent, lengths, at_commit),
            latency_s=_percentiles(took_s),
            mean_latency_s=_rounded(np.mean(took_s)),
            decode_share=_rounded(sum(decoding_s) / sum(took_s)),
        )


def _between_s(begin: int | None, end: int | None) -> float:
    assert begin is not None
    assert end is not None
    return (end - begin) / SECOND


def _row(source: str, app: str, agent: str, lengths: Sequence[int], at_commit: str) -> Row:
    return Row(
        commit=at_commit,
        source=source,
        app=app,
        agent=agent,
        calls=len(lengths),
        completion_tokens=_percentiles(lengths),
        mean_completion_tokens=_rounded(np.mean(lengths)),
    )


def _percentiles(values: Sequence[float]) -> tuple[float, float, float]:
    low, middle, high = (_rounded(each) for each in np.percentile(values, PERCENTS))
    return low, middle, high


def _rounded(value: float | np.floating) -> float:
    return float(f"{value:.4g}")


def section(rows: Sequence[Row]) -> str:
    modelled = [row for row in rows if row.source == "model"]
    longest = max(row.mean_latency_s or 0.0 for row in modelled if row.agent == "mathematics")
    router = min(row.mean_latency_s or 0.0 for row in modelled if row.agent == "router")
    share = sum((row.decode_share or 0) * row.calls * (row.mean_latency_s or 0) for row in modelled)
    share /= sum(row.calls * (row.mean_latency_s or 0) for row in modelled)
    said = (
        f"Of the modelled latency {share:.1%} is decoding (paper: over 96.6 %). A call of the "
        f"mathematics agent takes {longest / router:.1f} times as long as one of the router "
        "(paper: up to 25.1 times, to which the lengths were made to fit)."
    )
    header = ["agent", "", "calls", "tokens, mean", "P10, P50, P90", "latency, s", "P10, P50, P90"]
    lines = [
        [
            f"{row.app}: {row.agent}",
            row.source,
            str(row.calls),
            f"{row.mean_completion_tokens:g}",
            ", ".join(f"{each:g}" for each in row.completion_tokens),
            "" if row.mean_latency_s is None else f"{row.mean_latency_s:g}",
            "" if row.latency_s is None else ", ".join(f"{each:g}" for each in row.latency_s),
        ]
        for row in rows
    ]
    return f"{said}\n\n{table(header, lines)}"


def draw(rows: Sequence[Row], path: Path) -> None:
    """From the 10th to the 90th percentile, a dot at the median."""
    with picture(path, figsize=(9, 0.2 * len(rows) + 1)) as (figure, axes):
        for place, row in enumerate(reversed(rows)):
            low, middle, high = row.completion_tokens
            color = "C0" if row.source == "model" else "C1"
            axes.plot([low, high], [place, place], color=color)
            axes.plot([middle], [place], "o", color=color, markersize=3)
        names = [f"{row.app}: {row.agent}" for row in reversed(rows)]
        axes.set_yticks(range(len(rows)), names, fontsize="x-small")
        axes.set_xscale("log")
        axes.set_xlabel("tokens of an answer: P10, P50, P90 (blue: models; orange: recorded)")
        figure.tight_layout()


STUDY = Study(
    title="Figures 3 to 6: agents' answers and latencies",
    row=Row,
    measure=measure,
    section=section,
    draw=draw,
)
