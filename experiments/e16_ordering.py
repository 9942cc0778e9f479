"""Figure 16 (7.4): how often the next of two pending requests is the right one.

The paper, over its ten scenarios: 83.5 % of the pairs in the order of their true remaining latency,
Ayo's order 75.9 %, first come, first served half. All requests are pending at once, of different
agents. Here, of what was recorded (real agents; the demo's applications on a real model) and of the
generative models of the paper's applications: each alone, the demo's three together, and all
together, with as many calls of each. How it is measured stands in `trial.py`, the engine whose
service times are used in `playing.py`.

Expected: 0.5 of `fcfs`, 1 of the oracle `srpt`, and of `kairos` about 0.03 more than of the paper's
ranking on the mix of recorded agents, where a place in the workflow tells more than the agent's
name; of the models, whose agents are called by their names and no more, nothing to be gained beside
loops. Two references learn from everything at once, and do not run in Kairos: a table by agent and
step, and boosted trees on all that was recorded, which says how much there is to be known at all.
The features of `kairos` were chosen on these same recordings (each time one half was learnt, the
other tested), so on others expect less. Four minutes of one core.
"""

import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec.structs import asdict

from bench.report import Figure
from experiments.claim import Study
from experiments.claim import table as markdown
from experiments.recordings import Apps, RecordedCall, read_apps, recordings
from experiments.report import commit, picture
from experiments.trial import BOUND, DEMO_MIX, MIX, Row, measure
from experiments.workload import model
from kairos.simulate.workload.application import generated_calls

SEEDS, QUICK_SEEDS = 10, 1
MODELS = ("qa", "rg", "cg", "qa-ss", "rg-nq", "cg-mbpp")
MODELLED = 800  # workflows of each
PAPER = {"kairos": 0.835, "ayo": 0.759, "fcfs": 0.5}  # 7.4, mean over the paper's ten scenarios
BASELINE, OURS = "wasserstein-mds", "kairos"
DRAWN = ("fcfs", "las", "ayo", BASELINE, "mean", OURS, BOUND)
Source = Literal["recorded", "modelled"]


class Result(msgspec.Struct, frozen=True):
    """A line of the results."""

    commit: str
    source: Source
    row: Row


class Summary:
    """The rows of one source, by scenario and order."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self.scenarios = list(dict.fromkeys(row.scenario for row in rows))
        self.orders = list(dict.fromkeys(row.order for row in rows))
        self._rows: dict[tuple[str, str], list[Row]] = {}
        for row in rows:
            self._rows.setdefault((row.scenario, row.order), []).append(row)

    def values(self, scenario: str, order: str, *, all_pairs: bool = False) -> list[float]:
        """Accuracies by seed, where there were pairs."""
        rows = self._rows[scenario, order]
        values = [row.all_pairs if all_pairs else row.different_agents for row in rows]
        return [value for value in values if value is not None]

    def gains(self, scenario: str, order: str = OURS, *, all_pairs: bool = False) -> list[float]:
        """By seed: how much more of the pairs this order has right than the paper's ranking has."""
        ours = self.values(scenario, order, all_pairs=all_pairs)
        theirs = self.values(scenario, BASELINE, all_pairs=all_pairs)
        return [round(mine - other, 6) for mine, other in zip(ours, theirs, strict=True)]


def rows_of(quick: bool) -> Iterator[Result]:
    at_commit, seeds = commit(), range(QUICK_SEEDS if quick else SEEDS)
    sources: tuple[tuple[Source, Apps], ...] = (
        ("recorded", read_apps(*recordings())),
        ("modelled", modelled(MODELLED)),
    )
    for source, apps in sources:
        for row in measure(apps, seeds):
            yield Result(at_commit, source, row)


def modelled(workflows: int) -> Apps:
    """What the generative models make, as recordings are read."""
    return {
        name: [
            tuple(RecordedCall(**asdict(call)) for call in calls)
            for calls in generated_calls(model(name, 1.0, 1.0), workflows, seed=1)
        ]
        for name in MODELS
    }


def by_source(results: Sequence[Result]) -> dict[Source, Summary]:
    sources = dict.fromkeys(result.source for result in results)
    return {
        source: Summary([result.row for result in results if result.source == source])
        for source in sources
    }


def section(results: Sequence[Result]) -> str:
    parts = []
    for source, summary in by_source(results).items():
        for all_pairs in (False, True):
            pairs = "all pairs" if all_pairs else "pairs of different agents"
            parts.append(_table(summary, f"{source}, {pairs}", all_pairs=all_pairs))
        parts.append(_bound(summary))
    return "\n\n".join(parts)


def _table(summary: Summary, title: str, *, all_pairs: bool) -> str:
    """Mean and standard deviation over seeds."""
    paper = {} if all_pairs else PAPER
    rows = [
        [
            order,
            *(
                _cell(summary.values(each, order, all_pairs=all_pairs))
                for each in summary.scenarios
            ),
            f"{paper[order]:.3f}" if order in paper else "",
        ]
        for order in summary.orders
    ]
    return markdown([title, *summary.scenarios, "paper"], rows)


def _cell(values: Sequence[float]) -> str:
    if not values:
        return "-"
    return f"{statistics.fmean(values):.3f} ± {statistics.pstdev(values):.3f}"


def _bound(summary: Summary) -> str:
    """What could have been gained at all."""
    gains = ", ".join(
        f"{each} {_mean(summary.gains(each, BOUND)):+.3f}" for each in summary.scenarios
    )
    return f"Gain over {BASELINE} of trees that see all recorded features (a bound): {gains}."


def figures(results: Sequence[Result]) -> list[Figure]:
    """The claims, of what was recorded. The detail has what each rests on, and the most that could
    have been gained."""
    summary = by_source(results)["recorded"]
    gain = {each: _mean(summary.gains(each)) for each in summary.scenarios}
    apps = [each for each in summary.scenarios if each not in (DEMO_MIX, MIX)]
    worst = min(apps, key=lambda app: gain[app])
    detail: dict[str, object] = {
        "gain, different agents": gain,
        "gain, all pairs": {
            each: _mean(summary.gains(each, all_pairs=True)) for each in summary.scenarios
        },
        "bound, different agents": {
            each: _mean(summary.gains(each, BOUND)) for each in summary.scenarios
        },
    }
    accuracy = {
        order: {each: _mean(summary.values(each, order)) for each in summary.scenarios}
        for order in summary.orders
    }
    return [
        Figure(
            name="ordering accuracy on the mix, kairos minus wasserstein-mds",
            value=gain[MIX],
            unit="share of pairs",
            target=0.03,
            better="higher",
            detail={"by seed": summary.gains(MIX), **detail},
        ),
        Figure(
            name="ordering accuracy on the mix, kairos",
            value=accuracy[OURS][MIX],
            unit="share of pairs",
            target=None,
            better="higher",
            reference=PAPER[OURS],
            detail={"paper": PAPER, "here": accuracy},
        ),
        Figure(
            name="ordering accuracy of the worst application, kairos minus wasserstein-mds",
            value=gain[worst],
            unit="share of pairs",
            target=0.0,
            better="higher",
            detail={"application": worst, "by seed": summary.gains(worst), **detail},
        ),
    ]


def _mean(values: Sequence[float]) -> float:
    return round(statistics.fmean(values), 6)


def draw(results: Sequence[Result], path: Path) -> None:
    """Bars of the mean, whiskers of one standard deviation; a panel for each source."""
    summaries = by_source(results)
    layout = {"figsize": (13, 4.5 * len(summaries)), "squeeze": False, "layout": "constrained"}
    with picture(path, len(summaries), 1, **layout) as (figure, panels):
        for axes, (source, summary) in zip(panels.flat, summaries.items(), strict=True):
            _bars(axes, summary)
            axes.set_ylabel(f"{source}: share of pairs in the right order")
        handles, labels = panels.flat[0].get_legend_handles_labels()
        figure.legend(
            handles,
            labels,
            loc="outside upper center",
            ncols=len(DRAWN) + len(PAPER),
            fontsize="small",
        )


def _bars(axes: Any, summary: Summary) -> None:
    width = 0.85 / len(DRAWN)
    for n, order in enumerate(DRAWN):
        values = [summary.values(each, order) for each in summary.scenarios]
        axes.bar(
            [place + (n - (len(DRAWN) - 1) / 2) * width for place in range(len(values))],
            [statistics.fmean(each) for each in values],
            width,
            yerr=[statistics.pstdev(each) for each in values],
            label=order,
            color=f"C{n}",
            error_kw={"linewidth": 0.8, "alpha": 0.6},
        )
    for name, value in PAPER.items():
        color = f"C{DRAWN.index(name)}"
        axes.axhline(value, color=color, linestyle="--", linewidth=1, label=f"{name}, paper")
    names = [each.replace("_", "\n") for each in summary.scenarios]
    axes.set_xticks(range(len(names)), names)
    axes.set_ylim(0, 1)


STUDY = Study(
    title="Figure 16: pairs of requests in the right order",
    row=Result,
    measure=rows_of,
    section=section,
    draw=draw,
    figures=figures,
)
