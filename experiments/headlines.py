"""The README's table of gains: one row for each experiment that it names, made from kept rows.

Each experiment that has a row here prints it at its end, and `python -m experiments report` prints
them all from the results that are kept. A row says what ran: real engines, or the model of one, and
with which context.
"""

from collections.abc import Callable, Sequence

import msgspec

from experiments import e15_colocated, e21_recorded_agents, e29_live
from experiments.claim import Study, View
from experiments.grids import E2E, PER_TOKEN, Found, Grid, Metric, ratio
from experiments.placements_vllm_rows import Row as PlacementRow
from experiments.placements_vllm_rows import by_placement, preemptions_per_call
from experiments.report import RESULTS
from experiments.runs import Cell
from experiments.sections import SECTIONS, read_rows
from experiments.workloads import WORKLOADS
from kairos.core import Interval
from kairos.engines import load_profile

Cells = tuple[str, str]  # of the mean latency of a workflow, and of seconds per token
HEADER = (
    "Setting",
    "Measured on",
    "Compared with",
    "Mean latency of a workflow",
    "Seconds per token",
    "Command",
)


class Headline(msgspec.Struct, frozen=True, kw_only=True):
    """A row: what was compared, on what, and how to measure it again."""

    setting: str
    measured_on: str
    compared_with: str
    cells: Callable[[View], Cells | None]  # None: not all of its rows are there
    command: str


def _modelled(workload: str, model: str) -> str:
    """Return which engines are simulated, with the context of their profile."""
    of = WORKLOADS[workload]
    context = load_profile(of.profile).max_model_len
    return f"modelled: {of.pool} x A40, {model}, context of {context:,} tokens"


def _live(_: View) -> Cells | None:
    study = SECTIONS["e29_live"]
    assert isinstance(study, Study)
    rows = read_rows("e29_live", study, False)
    if not rows:
        return None
    found = {
        figure.name: msgspec.convert(figure.detail["95 %"], Interval)
        for figure in e29_live.figures(rows)
        if ", kairos over " in figure.name
    }
    e2e, token = found.values()
    return _with_interval(e2e), _with_interval(token)


def _grid(of: Grid, workload: str, other: str) -> Grid:
    """Return the part of a claim's grid that a row compares."""
    return msgspec.structs.replace(
        of, workloads=(workload,), combinations=("kairos", other), loads=("middle", "high")
    )


def _at_loads(of: Found, workload: str, other: str) -> Cells | None:
    """Return changes at middle and high load."""
    both = [of[workload, load] for load in ("middle", "high") if (workload, load) in of]
    if len(both) < 2:
        return None

    def cells(metric: Metric) -> str:
        return ", ".join(_percent(ratio(runs, "kairos", other, metric).mean) for runs in both)

    return cells(E2E), cells(PER_TOKEN)


_COLOCATED = _grid(e15_colocated.GRID, e15_colocated.WORKLOAD, "parrot")
_RECORDED_AGENTS = _grid(e21_recorded_agents.GRID, "claude_code", "programs")


def runs(view: View) -> list[Cell]:
    """Return the simulated runs behind the table, of those there are; git has their rows."""
    grids = (_COLOCATED, _RECORDED_AGENTS)
    cells = [cell for grid in grids for _, cell in grid.cells(view.rates, quick=False)]
    return [cell for cell in cells if cell in view.rows]


def _colocated(view: View) -> Cells | None:
    return _at_loads(view.found(_COLOCATED), e15_colocated.WORKLOAD, "parrot")


def _recorded_agents(view: View) -> Cells | None:
    return _at_loads(view.found(_RECORDED_AGENTS), "claude_code", "programs")


def _preemptions(_: View) -> Cells | None:
    path = RESULTS / "placements_vllm.jsonl"
    if not path.exists():
        return None
    rows = [msgspec.json.decode(each, type=PlacementRow) for each in path.read_bytes().splitlines()]
    return _fewer_preemptions(rows)


def _fewer_preemptions(rows: Sequence[PlacementRow]) -> Cells:
    found = by_placement(rows)
    ours, theirs = (preemptions_per_call(found[name]) for name in ("kairos", "least-kv"))
    return f"preemptions per call: {ours:.3f} instead of {theirs:.3f}", ""


HEADLINES = {
    "e29_live": Headline(
        setting="The Kairos paper's three applications",
        measured_on="real: two vLLM on CPU cores, a small model of random weights",
        compared_with="first come, first served, round robin",
        cells=_live,
        command="`python -m experiments run e29_live`",
    ),
    "e15_colocated": Headline(
        setting="The same applications",
        measured_on=_modelled("colocated-8b", "Llama-3-8B"),
        compared_with="first come, first served, round robin",
        cells=_colocated,
        command="`python -m experiments run e15_colocated`",
    ),
    "e21_recorded_agents": Headline(
        setting="Recorded sessions of a coding agent (`claude_code`), prompts divided by 51, "
        "without those of over 200,000 tokens or 70 calls",
        measured_on=_modelled("claude_code", "Llama-2-13B"),
        compared_with="program scheduling, as vllm-router has it",
        cells=_recorded_agents,
        command="`python -m experiments run e21_recorded_agents`",
    ),
    "placements_vllm": Headline(
        setting="Placement where KV memory is short",
        measured_on="real: two vLLM on CPU cores, a small model of random weights",
        compared_with="the placement `least-kv`",
        cells=_preemptions,
        command="`python -m experiments.placements_vllm`",
    ),
}


def line(name: str, view: View) -> str | None:
    """Return the row of an experiment in Markdown; None where its results are not complete."""
    cells = HEADLINES[name].cells(view)
    return None if cells is None else _in_markdown(HEADLINES[name], cells)


def placements_line(rows: Sequence[PlacementRow]) -> str:
    """Return the row of the placements on real vLLM, from rows that were just measured."""
    return _in_markdown(HEADLINES["placements_vllm"], _fewer_preemptions(rows))


def _in_markdown(headline: Headline, cells: Cells) -> str:
    shown = (headline.setting, headline.measured_on, headline.compared_with, *cells)
    return f"| {' | '.join((*shown, headline.command))} |"


def lines(view: View, names: Sequence[str] = tuple(HEADLINES)) -> list[str]:
    """Return the table of these experiments in Markdown; those without results are left out."""
    rows = [found for name in names if name in HEADLINES and (found := line(name, view))]
    return [f"| {' | '.join(HEADER)} |", "|---|---|---|--:|--:|---|", *rows] if rows else []


def _with_interval(of: Interval) -> str:
    low, high = (round(100 * (each - 1)) for each in (of.low, of.high))
    return f"**{_percent(of.mean)}** [{low}, {high}]"


def _percent(of: float) -> str:
    return f"{100 * (of - 1):+.0f} %"
