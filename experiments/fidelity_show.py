"""What was found, as a line, a table, figures and a picture."""

import statistics
from collections.abc import Sequence
from pathlib import Path

from rich.table import Table

from bench.report import Figure
from experiments.fidelity_conditions import Row
from experiments.fidelity_errors import MEAN_E2E, error_percent, median_error
from experiments.report import picture

AIM_PERCENT = 10.0


def line(row: Row) -> str:
    """One run."""
    error, sides = row.error_percent(), row.sides[MEAN_E2E]
    return (
        f"  {MEAN_E2E}: real {_number(sides.real)}, model {_number(sides.model)}, "
        f"{_signed(error)}; cores: engines {row.cores.engines:.2f}, kairos {row.cores.kairos:.2f}, "
        f"client {row.cores.client:.2f}, others {row.cores.others:.2f}"
    )


def table(rows: Sequence[Row]) -> Table:
    """Real, model and error of each figure, over the seeds of each condition."""
    found = by_condition(rows)
    made = Table(title="real, model, error of the model; means over seeds")
    made.add_column("", no_wrap=True)
    for name, runs in found.items():
        made.add_column(f"{name}\n{len(runs)} x {runs[0].workflows}", justify="right")
    for figure in rows[0].sides:
        made.add_row(figure, *(_cell(runs, figure) for runs in found.values()))
    made.add_row("cores, others'", *(f"{_others(runs):.2f}" for runs in found.values()))
    return made


def by_condition(rows: Sequence[Row]) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(row.condition, []).append(row)
    return found


def figures(rows: Sequence[Row]) -> list[Figure]:
    """The claim, for each condition."""
    return [
        Figure(
            name=f"error of the model of vLLM, mean end-to-end latency, {condition}",
            value=round(median_error(row.error_percent() for row in runs), 2),
            unit="percent, median of seeds, without its sign",
            target=AIM_PERCENT,
            detail={
                "by seed": [_rounded(row.error_percent()) for row in runs],
                "others' cores, by seed": [row.cores.others for row in runs],
                "policy": runs[0].policy,
                "errors, over all seeds": {
                    figure: _rounded(error_percent([row.sides[figure] for row in runs]))
                    for figure in runs[0].sides
                },
            },
        )
        for condition, runs in by_condition(rows).items()
    ]


def draw(rows: Sequence[Row], path: Path) -> None:
    """Signed errors of the times: a bar over all seeds, a dot for each; the aim is shaded."""
    found = by_condition(rows)
    times = [figure for figure in rows[0].sides if figure.endswith(" s")]
    with picture(path, figsize=(10, 5), layout="constrained") as (figure, axes):
        axes.axhspan(-AIM_PERCENT, AIM_PERCENT, color="0.9", zorder=0)
        axes.axhline(0, color="0.4", linewidth=0.8)
        width = 0.8 / len(times)
        for n, time in enumerate(times):
            for place, runs in enumerate(found.values()):
                at = place + (n - (len(times) - 1) / 2) * width
                label = time if place == 0 else None
                over_all = error_percent([row.sides[time] for row in runs]) or 0.0
                axes.bar(at, over_all, width * 0.9, color=f"C{n}", label=label, zorder=1)
                by_seed = [row.error_percent(time) or 0.0 for row in runs]
                axes.scatter([at] * len(by_seed), by_seed, s=8, color="black", zorder=2)
        axes.set_xticks(range(len(found)), [name.replace(", ", ",\n") for name in found])
        axes.set_ylabel("error of the model, %")
        figure.legend(loc="outside upper center", ncols=len(times) // 2, fontsize="small")


def _cell(runs: Sequence[Row], figure: str) -> str:
    sides = [row.sides[figure] for row in runs]
    real = _mean([each.real for each in sides])
    model = _mean([each.model for each in sides])
    return f"{_number(real)}  {_number(model)}\n[bold]{_signed(error_percent(sides))}"


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None


def _others(runs: Sequence[Row]) -> float:
    return statistics.fmean(row.cores.others for row in runs)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}" if value < 1000 else f"{value:.0f}"


def _signed(percent: float | None) -> str:
    return "-" if percent is None else f"{percent:+.1f} %"


def _rounded(percent: float | None) -> float | None:
    return None if percent is None else round(percent, 2)
