"""Output of a usage report, as a table and as a CSV file."""

import csv
import io
from datetime import datetime
from pathlib import Path

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from kairos.core import SECOND
from kairos.host import atomic_write
from kairos.observe.usage import UsageFigures, UsageReport

MAX_ROWS = 1_000  # rows of a table; a file has all
_WIDTH = 200  # without a terminal
_FORMULA = ("=", "+", "-", "@", "\t", "\r")  # first characters of a spreadsheet's formula

# Heading, figure, format in a table, format in a file.
_COLUMNS = (
    ("calls", "calls", "{:,}", "{}"),
    ("failed", "failed", "{:,}", "{}"),
    ("refused", "refused", "{:,}", "{}"),
    ("cancelled", "cancelled", "{:,}", "{}"),
    ("workflows", "workflows", "{:,}", "{}"),
    ("prompt tokens", "prompt_tokens", "{:,}", "{}"),
    ("of these cached", "cached_tokens", "{:,}", "{}"),
    ("answer tokens", "answer_tokens", "{:,}", "{}"),
    ("queue, s", "queue_s", "{:,.1f}", "{:.3f}"),
    ("service, s", "service_s", "{:,.1f}", "{:.3f}"),
    ("KV token-s", "kv_token_s", "{:,.0f}", "{:.3f}"),
)
_COST = ("cost", "cost", "{:,.2f}", "{:.6f}")


def show_usage(report: UsageReport, currency: str | None) -> None:
    """Print the report. `currency`: heading of the costs; None: no prices."""
    console = Console()
    console.width = console.width if console.is_terminal else _WIDTH
    console.print(shown(report, currency))


def shown(report: UsageReport, currency: str | None) -> Group:
    """Return a table with a row for each group and a total, and notes on what is left out."""
    columns = _COLUMNS if currency is None else (*_COLUMNS, _COST)
    title = f"Calls that ended from {_when(report.begins_at)} to {_when(report.ends_at)}"
    table = Table(title=title, title_justify="left")
    for name in report.by:
        table.add_column(name, overflow="fold")
    for heading, figure, *_ in columns:
        is_cost = figure == "cost" and currency
        table.add_column(
            Text(f"cost, {currency}" if is_cost else heading), justify="right", overflow="fold"
        )

    def add(names: list[str], figures: UsageFigures, *, ends: bool) -> None:
        cells = (form.format(getattr(figures, figure)) for _, figure, form, _ in columns)
        table.add_row(*map(Text, (*names, *cells)), end_section=ends)

    rows = report.groups[:MAX_ROWS]
    for place, (group, figures) in enumerate(rows, start=1):
        add([name or "-" for name in group], figures, ends=place == len(rows))
    add(["all", *[""] * (len(report.by) - 1)], report.total, ends=True)
    return Group(table, *map(Text, _left_out(report)))


def _left_out(report: UsageReport) -> list[str]:
    lines = []
    if (more := len(report.groups) - MAX_ROWS) > 0:
        lines.append(f"{more:,} more groups have no row here: --csv FILE has all")
    if report.under_way:
        lines.append(f"calls under way at the end, not counted: {report.under_way:,}")
    if report.unmeasured:
        lines.append(
            f"calls on instances whose limits are not in the log: {report.unmeasured:,}; their "
            "service is counted in part or not at all"
        )
    if report.is_cut:
        lines.append(f"the log begins at {_when(report.log_begins_at)}: earlier calls are missing")
    return lines


def _when(at: int) -> str:
    """Return the local time; for simulations, which start at 0, seconds."""
    try:
        if at >= 86_400 * SECOND:
            return datetime.fromtimestamp(at / SECOND).strftime("%Y-%m-%d %H:%M:%S")
    except (ValueError, OverflowError, OSError):
        pass
    return f"{at / SECOND:.3f} s"


def write_csv(path: Path, report: UsageReport, *, has_cost: bool) -> None:
    """Write all groups as CSV, most service first, without a total.

    A name that a spreadsheet would interpret as a formula is prefixed with an apostrophe.

    Raises:
        SetupError: the file cannot be written.
    """
    columns = (*_COLUMNS, _COST) if has_cost else _COLUMNS
    with atomic_write(path) as file:
        text = io.TextIOWrapper(file, "utf-8", newline="")
        lines = csv.writer(text)
        lines.writerow([*report.by, *(figure for _, figure, *_ in columns)])
        for group, figures in report.groups:
            cells = [form.format(getattr(figures, figure)) for _, figure, _, form in columns]
            lines.writerow([*map(_plain, group), *cells])
        text.detach()  # flushed; the file is closed by who opened it


def _plain(name: str | None) -> str:
    if name is None:
        return ""
    return f"'{name}" if name.startswith(_FORMULA) else name
