"""Live on a GPU: policies before two real vLLM that share it, and what the model had said.

As before two vLLM on CPU (`e29_live`), on an NVIDIA H200: two instances of vLLM 0.26 with a model
of Llama-3-8B's shape (random weights), each with a little less than half of the memory, so that
they share arithmetic and bandwidth; 16 calls at once each, of up to 1,024 tokens. QA, RG and CG
together, as many workflows as keep both busy for half a minute, within a third of that. Expected:
the default below both baselines, end to end and per token, and simulated ratios within 0.1 of the
measured ones.

`python -m experiments.gpu` measures this, where there is such a GPU (`docs/gpu.md`): runs in
repetitions, of which only whole ones count.
"""

from collections.abc import Sequence
from pathlib import Path

from bench.report import Figure
from experiments import e29_live
from experiments.claim import Study

COMPARED = ("parrot", "ayo", "kairos")


class Row(e29_live.Row, frozen=True, kw_only=True):
    """One run, on this device."""

    device: str
    rate_per_s: float  # of workflows
    max_context: int  # tokens
    elapsed_s: float


def missing(rows: Sequence[Row], repetitions: int) -> list[tuple[int, str]]:
    """Runs that are still to be made: repetition and combination. Not in the order in which they
    run (`in_turn`)."""
    made = {(row.repetition, row.combination) for row in rows}
    all_of = [(number, name) for number in range(1, repetitions + 1) for name in COMPARED]
    return [run for run in all_of if run not in made]


def whole(rows: Sequence[Row]) -> list[Row]:
    """Those of repetitions in which all were run."""
    last = max((row.repetition for row in rows), default=0)
    broken_off = {repetition for repetition, _ in missing(rows, last)}
    return [row for row in rows if row.repetition not in broken_off]


def section(rows: Sequence[Row]) -> str:
    if not whole(rows):
        return "No repetition is whole yet."
    devices = ", ".join(sorted({row.device for row in rows}))
    return f"On {devices}.\n\n{e29_live.section(whole(rows))}"


def figures(rows: Sequence[Row]) -> list[Figure]:
    return e29_live.figures(whole(rows), "real vLLM on a GPU") if whole(rows) else []


def draw(rows: Sequence[Row], path: Path) -> None:
    if whole(rows):
        e29_live.draw(whole(rows), path)


STUDY = Study(
    title="Live on a GPU: real vLLM, and what the model had said",
    row=Row,
    measure=None,
    section=section,
    draw=draw,
    figures=figures,
)
