"""A batch of documents beside online agents, on two real vLLM.

Expected, as on simulated engines (`e46_batch.py`): agents hardly notice a batch whose calls go as
what is spare (the class `batch`), and clearly notice the same lines as ordinary calls (`standard`):
the 99th percentile of their workflows is at most three quarters as long. The former does fewer
lines meanwhile: that is the price.

Two vLLM on CPU, a core each, that run 16 sequences at once, in the order of arrival. The agents are
workflows of QA, RG and CG, at a rate that leaves most of the engines free. The batch has 2,500
lines, more than can be done of what is spare; as ordinary calls they may all be done before the
agents are, which is to their advantage. An unchanged `openai` client uploads and begins it before
the first workflow comes. In a repetition the same workflows come at the same instants beside
nothing, beside the batch and beside the same lines as ordinary calls, in a random order. Each run
has a Kairos of its own, which begins with what one learnt of a run before.

`python -m experiments.batch_vllm` measures this (`experiments/batch_vllm.py`).
"""

from collections.abc import Sequence
from typing import Literal

import msgspec

from bench.report import Figure
from experiments.claim import Study, table
from kairos.core import mean_interval

REPETITIONS, AIM = 4, 0.75
Beside = Literal["nothing", "batch", "standard"]
BESIDE: tuple[Beside, ...] = ("nothing", "batch", "standard")
_SAID = {
    "nothing": "nothing",
    "batch": "a batch, of what is spare",
    "standard": "its lines as ordinary calls",
}


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """A run: what agents' workflows took, and what of the batch was done meanwhile."""

    commit: str
    date: str
    repetition: int
    beside: Beside  # the class of the batch's calls
    workflows: int
    mean_s: float
    p99_s: float
    lines: int
    lasted_s: float


def ratios(rows: Sequence[Row], of: Beside, to: Beside, figure: str) -> list[float]:
    """Of each repetition that has both."""
    found = {(row.repetition, row.beside): getattr(row, figure) for row in rows}
    repetitions = sorted({row.repetition for row in rows})
    return [found[n, of] / found[n, to] for n in repetitions if {(n, of), (n, to)} <= found.keys()]


def section(rows: Sequence[Row]) -> str:
    lines = []
    for beside in BESIDE:
        of = [row for row in rows if row.beside == beside]
        if not of:
            continue
        lines.append(
            [
                _SAID[beside],
                f"{len(of)}",
                f"{_mean([row.mean_s for row in of]):.2f}",
                f"{_mean([row.p99_s for row in of]):.2f}",
                _shown(ratios(rows, beside, "nothing", "mean_s")),
                _shown(ratios(rows, beside, "nothing", "p99_s")),
                f"{sum(row.lines for row in of) / sum(row.lasted_s for row in of):.1f}",
            ]
        )
    header = ["beside", "runs", "mean, s", "P99, s", "mean, times", "P99, times", "lines/s"]
    made = ", ".join(sorted({f"commit {row.commit}, {row.date}" for row in rows}))
    return (
        f"Aim: P99 beside a batch at most {AIM:g} times that beside its lines as ordinary calls. "
        f"It is {_shown(ratios(rows, 'batch', 'standard', 'p99_s'))}.\n\n{table(header, lines)}\n\n"
        f"Of {made}."
    )


def figures(rows: Sequence[Row]) -> list[Figure]:
    """Once all repetitions are there."""
    found = mean_interval(ratios(rows, "batch", "standard", "p99_s"))
    if found is None or len(rows) < REPETITIONS * len(BESIDE):
        return []
    return [
        Figure(
            name="e46 on real vLLM, P99 of agents' workflows beside a batch, over that beside its "
            "lines as ordinary calls",
            value=round(found.mean, 4),
            unit="times",
            target=AIM,
            better="lower",
            detail={"95 %": [round(found.low, 4), round(found.high, 4)]},
        )
    ]


def _mean(of: Sequence[float]) -> float:
    return sum(of) / len(of)


def _shown(of: Sequence[float]) -> str:
    """The mean, with a 95 % interval where there are several."""
    if not of:
        return ""
    around = mean_interval(of)
    return f"{_mean(of):.2f}" + (
        "" if around is None else f" [{around.low:.2f}, {around.high:.2f}]"
    )


STUDY = Study(
    title="A batch beside agents, on real vLLM",
    row=Row,
    measure=None,
    section=section,
    figures=figures,
)
