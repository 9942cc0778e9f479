"""What a demo shows: progress while it runs, answers and tables at its end."""

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from rich.bar import Bar
from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from kairos.calls import CallRow
from kairos.demo.plan import Arrivals
from kairos.demo.run import Outcome, Run
from kairos.workload import Burstiness

REFRESH_S = 0.25
LINE_EVERY_S = 5.0  # where there is no terminal to redraw
ANSWER_LENGTH = 600
BAR_WIDTH = 20


async def show_progress(console: Console, run: Run, total: int) -> None:
    """Show the queue, the instances and the finished workflows until cancelled."""
    if not console.is_terminal:
        while True:
            await asyncio.sleep(LINE_EVERY_S)
            console.print(_progress(run, total), soft_wrap=True)
    with Live(console=console, refresh_per_second=1 / REFRESH_S, transient=True) as live:
        while True:
            live.update(_progress(run, total))
            await asyncio.sleep(REFRESH_S)


def _progress(run: Run, total: int) -> Text:
    balancer = run.service.brain.balancer
    ledger = balancer.ledger
    running = "  ".join(
        f"{instance.id} {'#' * ledger.running(instance.id):<{min(instance.max_num_seqs, 16)}}"
        for instance in ledger.instances.values()
    )
    return Text(
        f"{run.elapsed_s:5.1f} s  finished {run.finished}/{total}  submitted {len(run.outcomes)}  "
        f"queue {balancer.waiting}  running {running}"
    )


def show_answers(console: Console, outcomes: Sequence[Outcome]) -> None:
    """One answer of each application that has any."""
    shown: set[str] = set()
    for outcome in outcomes:
        name = outcome.submission.app.name
        if name in shown or not outcome.result or "error" in outcome.result:
            continue
        shown.add(name)
        console.print(f"\n[bold]{name}[/] {escape(_clip(outcome.submission.question))}")
        for field, value in outcome.result.items():
            console.print(f"  [dim]{escape(field)}:[/] {escape(_clip(str(value)))}")


def _clip(text: str) -> str:
    text = text.strip()
    return text if len(text) <= ANSWER_LENGTH else text[:ANSWER_LENGTH] + " ..."


def show_tables(console: Console, run: Run) -> None:
    record = run.metrics.record()
    apps = Table(title="Applications", title_justify="left")
    for heading in ("app", "workflows", "calls", "e2e mean", "P50", "P95", "s/token", "queued"):
        apps.add_column(heading, justify="left" if heading == "app" else "right")
    for name, figures in [*record["apps"].items(), ("all", record)]:
        e2e = figures["e2e_s"]
        apps.add_row(
            escape(name),
            str(figures["workflows"]),
            str(figures["calls"]),
            *(_number(e2e[key], "{:.1f} s") for key in ("mean", "p50", "p95")),
            _number(figures["s_per_token"]["mean"], "{:.3f}"),
            _number(figures["queued_share"], "{:.0%}"),
        )
    console.print()
    console.print(apps)
    console.print(_agents(run.metrics.rows))


def show_comparison(console: Console, record: dict[str, Any]) -> None:
    """Two runs' figures, one above the other, and the first's over the second's."""
    console.print()
    console.print(_compared(record, "e2e_s", "End to end, seconds", "{:.1f}"))
    console.print(_compared(record, "s_per_token", "Seconds per generated token", "{:.3f}"))


def _compared(record: dict[str, Any], figure: str, title: str, form: str) -> Table:
    """One spread of each app and of all, as rows for the runs and for their ratio."""
    table = Table(title=title, title_justify="left")
    for heading in ("app", "policy", "mean", "P50", "P95", "P99", "queued", "mean"):
        table.add_column(heading, justify="left" if heading in ("app", "policy") else "right")
    table.columns[-1].justify = "left"
    runs, ratio = record["runs"], record["ratio"]
    means = [part[figure]["mean"] or 0 for run in runs.values() for part in _parts(run).values()]
    for app, ratios in _parts(ratio).items():
        for policy, run in runs.items():
            part = _parts(run)[app]
            table.add_row(
                escape(app),
                policy,
                *_cells(part[figure], form),
                _number(part["queued_share"], "{:.0%}"),
                Bar(max(means), 0, part[figure]["mean"] or 0, width=BAR_WIDTH),
            )
        table.add_row("", "ratio", *_cells(ratios[figure], "{:.2f}"), end_section=True)
    return table


def _parts(record: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {**record["apps"], "all": record}


def _cells(spread: dict[str, float | None], form: str) -> list[str]:
    return [_number(spread[key], form) for key in ("mean", "p50", "p95", "p99")]


def _agents(rows: Sequence[CallRow]) -> Table:
    by_agent: dict[tuple[str, str], list[CallRow]] = defaultdict(list)
    for row in rows:
        by_agent[row.request.app or "unknown", row.request.agent or "unknown"].append(row)
    table = Table(title="Agents", title_justify="left")
    table.add_column("app")
    table.add_column("agent")
    for heading in ("calls", "prompt tokens", "completion tokens", "per call"):
        table.add_column(heading, justify="right")
    for (app, agent), calls in sorted(by_agent.items()):
        completion = sum(call.completion_tokens or 0 for call in calls)
        table.add_row(
            escape(app),
            escape(agent),
            str(len(calls)),
            str(sum(call.prompt_tokens or 0 for call in calls)),
            str(completion),
            f"{completion / len(calls):.0f}",
        )
    return table


def show_arrivals(console: Console, name: str, planned: Arrivals) -> None:
    console.print(f"\n[bold]Arrivals[/] {name}: {planned.source} (-: too few to tell)")
    for what, figures in (
        ("the trace", planned.trace),
        ("20,000 arrivals generated like it", planned.process),
        ("this run", planned.here),
    ):
        console.print(f"  {what}: {_burstiness(figures)}", soft_wrap=True)


def _burstiness(figures: Burstiness) -> str:
    windows = figures["index_of_dispersion"]
    dispersion = "/".join(_number(value, "{:.2f}") for value in windows.values())
    seconds = "/".join(str(window) for window in windows)
    return f"CV {_number(figures['cv'], '{:.2f}')}, index of dispersion {dispersion} at {seconds} s"


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else form.format(value)
