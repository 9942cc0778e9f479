"""Metrics records and comparisons as tables: of demos, simulations and replays."""

from collections.abc import Mapping
from typing import Any

from rich.bar import Bar
from rich.console import Console
from rich.markup import escape
from rich.table import Table

BAR_WIDTH = 20
# What is shown of several seeds: label, figure, which of its spread, and how it is written.
_SHOWN = (
    ("mean", "e2e_s", "mean", "{:.1f}"),
    ("P95", "e2e_s", "p95", "{:.1f}"),
    ("P99", "e2e_s", "p99", "{:.1f}"),
    ("s/token", "s_per_token", "mean", "{:.3f}"),
    ("TTFT", "ttft_s", "mean", "{:.2f}"),
)
_SPREAD = {"mean": "mean", "p50": "P50", "p90": "P90", "p95": "P95", "p99": "P99"}


def show_record(console: Console, record: dict[str, Any]) -> None:
    """A metrics record as tables, a line for each application and one for all."""
    console.print(_applications(record))
    console.print(_calls(record))
    if "slowdown" in record:
        console.print(_slowdown(record))


def _applications(record: dict[str, Any]) -> Table:
    table = _table("Applications: end to end, seconds", "workflows", *_SPREAD.values(), "s/token")
    for name, figures in _parts(record).items():
        table.add_row(
            escape(name),
            f"{figures['workflows']:,}",
            *(_number(figures["e2e_s"][key], "{:.1f}") for key in _SPREAD),
            _number(figures["s_per_token"]["mean"], "{:.3f}"),
        )
    return table


def _calls(record: dict[str, Any]) -> Table:
    """Return a table of calls' figures, as far as engines report them."""
    headings = ("calls", "TTFT, s", "queued", "preempted", "recomputed", "cached", "wasted")
    table = _table("Calls: times, shares, preemptions of each, tokens in vain", *headings)
    for name, figures in _parts(record).items():
        table.add_row(
            escape(name),
            f"{figures['calls']:,}",
            _number(figures["ttft_s"]["mean"], "{:.2f}"),
            _number(figures["queued_share"], "{:.0%}"),
            _number(figures["preemptions_per_call"], "{:.3f}"),
            _number(figures["recomputed_token_share"], "{:.1%}"),
            _number(figures["cached_prompt_share"], "{:.1%}"),
            _number(figures["wasted_tokens"], "{:,}"),
        )
    return table


def _slowdown(record: dict[str, Any]) -> Table:
    table = _table("Times as long as with an engine to itself", *_SPREAD.values(), "worst")
    for name, figures in _parts(record).items():
        cells = (_number(figures["slowdown"][key], "{:.2f}") for key in (*_SPREAD, "worst"))
        table.add_row(escape(name), *cells)
    return table


def _table(title: str, *headings: str) -> Table:
    table = Table(title=title, title_justify="left")
    table.add_column("app", overflow="fold")
    for heading in headings:
        table.add_column(heading, justify="right")
    return table


def show_comparison(console: Console, record: dict[str, Any]) -> None:
    """Two runs' figures, one above the other, and the first's over the second's."""
    console.print()
    console.print(_compared(record, "e2e_s", "End to end, seconds", "{:.1f}"))
    console.print(_compared(record, "s_per_token", "Seconds per generated token", "{:.3f}"))


def _compared(record: dict[str, Any], figure: str, title: str, form: str) -> Table:
    """Return a table of one figure by app and in total, with rows for the runs and their ratio."""
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


def show_intervals(console: Console, record: dict[str, Any]) -> None:
    """Means over seeds with their intervals: of one run, or of two and what is between them."""
    seeds = len(record["seeds"])
    title = f"Seconds: means over {seeds} seeds, and their 95 % intervals"
    table = Table(title=title, title_justify="left")
    runs = dict(record["intervals"])
    if "runs" in record:
        runs["difference"] = record["difference"]
    else:
        runs = {"mean": runs}
    for heading in ("app", "figure", *runs):
        table.add_column(heading, justify="left" if heading in ("app", "figure") else "right")
    parts = {policy: _parts(run) for policy, run in runs.items()}
    for app in next(iter(parts.values())):
        for label, figure, key, form in _SHOWN:
            cells = [_interval(part.get(app, {}).get(figure), key, form) for part in parts.values()]
            table.add_row(escape(app), label, *cells, end_section=label == _SHOWN[-1][0])
    console.print(table)


def _interval(found: dict[str, Any] | None, key: str, form: str) -> str:
    if found is None or found[key] is None:
        return "-"
    mean, low, high = (form.format(found[key][name]) for name in ("mean", "low", "high"))
    return f"{mean} {low}..{high}"


def _parts(record: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {**record["apps"], "all": record}


def _cells(spread: dict[str, float | None], form: str) -> list[str]:
    return [_number(spread[key], form) for key in ("mean", "p50", "p95", "p99")]


def told_burstiness(figures: Mapping[str, Any]) -> str:
    """The figures of arrivals, on one line."""
    windows = figures["index_of_dispersion"]
    dispersion = "/".join(_number(value, "{:.2f}") for value in windows.values())
    seconds = "/".join(str(window) for window in windows)
    return f"CV {_number(figures['cv'], '{:.2f}')}, index of dispersion {dispersion} at {seconds} s"


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else form.format(value)
