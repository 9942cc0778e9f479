"""Console output about runs: progress, results, and lists."""

import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from kairos.core import SECOND
from kairos.workflows.run.driver import RunProgress
from kairos.workflows.run.export import errors_path
from kairos.workflows.run.run_store import RunDirectory, RunRecord

_FEW_ROWS = 5  # too few rows for a rate


def state_of(directory: RunDirectory, record: RunRecord) -> str:
    """Return a run's state; "interrupted" if its process died while running."""
    if record.state == "running" and directory.holder() is None:
        return "interrupted"
    return record.state


def progress_line(run_id: str, progress: RunProgress) -> Text:
    figures, rows = progress.figures, progress.rows
    share = f"{progress.ended:,}" if rows is None else f"{progress.ended:,} of {rows:,}"
    parts = [f"{run_id}: {share} rows"]
    now = progress.ended - progress.ended_before
    if now >= _FEW_ROWS and progress.elapsed_s > 0:
        rate = now / progress.elapsed_s
        parts.append(f"{rate:,.1f} rows/s")
        if rows is not None and rows > progress.ended:
            parts.append(f"{duration((rows - progress.ended) / rate)} left")
    parts.append(calls_text(figures))
    parts.append(tokens(figures))
    if saved := saved_text(figures):
        parts.append(f"saved {saved}")
    if failed := figures.get("failed", 0):
        parts.append(f"{failed:,} failed")
    if instead := figures.get("skipped", 0) + figures.get("defaulted", 0):
        parts.append(f"{instead:,} went on by on_error")
    if progress.waits_for:
        parts.append(progress.waits_for)
    return Text("  ".join(parts))


def calls_text(figures: dict[str, int]) -> str:
    """Return the number of calls: of models, of processors, and prefills of static prefixes."""
    named = (("processed", "of processors"), ("touched", "prefills of static prefixes"))
    more = [f"{figures[name]:,} {said}" for name, said in named if figures.get(name, 0)]
    return " and ".join([f"{figures.get('calls', 0):,} calls", *more])


def tokens(figures: dict[str, int]) -> str:
    prompt, completion = figures.get("prompt_tokens", 0), figures.get("completion_tokens", 0)
    return f"{short(prompt)} + {short(completion)} tokens"


def saved_text(figures: dict[str, int]) -> str:
    """Return the savings: calls not made, and cached prompt tokens."""
    named = (
        ("merged", "merged"),
        ("fetched", "fetched"),
        ("resumed", "resumed"),
        ("cached_tokens", "cached tokens"),
    )
    return ", ".join(
        f"{short(figures[name])} {said}" for name, said in named if figures.get(name, 0)
    )


def show_end(console: Console, record: RunRecord) -> None:
    """Print the result of a run, and what to do next."""
    figures = record.figures
    if record.state == "done":
        failed = figures.get("failed", 0)
        console.print(
            f"[bold]{figures.get('written', 0):,} rows[/] are in {escape(record.out)}",
            soft_wrap=True,
        )
        if dropped := figures.get("dropped", 0):
            console.print(f"{dropped:,} rows were filtered out")
        if cut := figures.get("cut", 0):
            console.print(f"{cut:,} answers were cut or had no text (on_cut of the operators)")
        for each in fallback_texts(record):
            console.print(f"[bold yellow]{escape(each)}[/]", soft_wrap=True, highlight=False)
        if record.fallbacks:
            console.print(
                "a new run retries them, and reuses all other results",
                soft_wrap=True,
            )
        if failed:
            where = errors_path(Path(record.out))
            console.print(
                f"[bold red]{failed:,} rows failed[/]: {escape(str(where))} says why; "
                f"kairos runs resume {record.id} retries them",
                soft_wrap=True,
            )
    else:
        why = f" ({escape(record.detail)})" if record.detail else ""
        console.print(
            f"stopped{why}: kairos runs resume {record.id} goes on from here",
            soft_wrap=True,
        )
    said = [calls_text(figures), tokens(figures)]
    if saved := saved_text(figures):
        said.append(f"saved {saved}")
    console.print("; ".join(said))
    if expected := forecast_text(record):
        console.print(f"expected: {expected}", soft_wrap=True, highlight=False)


def fallback_texts(record: RunRecord) -> list[str]:
    """Return a text for each operator that failed for some rows, which continued without its value.

    It has the number of rows, and the first error.
    """
    ways = {"default": "took the default of", "skip": "went on without"}
    return [
        f"{each.rows:,} rows {ways[each.how]} '{name}' (on_error: {each.how}); row {each.row}: "
        f"{each.error}"
        for name, each in record.fallbacks.items()
    ]


def forecast_text(record: RunRecord) -> str | None:
    """Return the forecast, next to the actual figures once the run is done."""
    expected, figures = record.forecast, record.figures
    if expected is None:
        return None
    said = f"{expected.time_s:,.1f} s ({expected.low_s:,.1f} to {expected.high_s:,.1f})"
    if record.state == "done":
        said += f", took {record.took_s:,.1f} s"
    for name, many in (
        ("calls", expected.calls),
        ("prompt_tokens", expected.prompt_tokens),
        ("completion_tokens", expected.completion_tokens),
        ("cached_tokens", expected.cached_share * expected.prompt_tokens),
    ):
        said += f"; {name.replace('_', ' ')} {short(round(many))}"
        if record.state == "done":
            said += f", were {short(figures.get(name, 0))}"
    return said


def show_runs(console: Console, runs: Sequence[tuple[RunDirectory, RunRecord]]) -> None:
    table = Table(box=None, pad_edge=False)
    for heading in ("run", "flow", "state", "rows", "failed", "calls", "begun", "out"):
        table.add_column(heading, overflow="fold")
    for directory, record in runs:
        figures = record.figures
        ended = sum(figures.get(name, 0) for name in ("written", "dropped", "gathered"))
        table.add_row(
            record.id,
            record.flow,
            state_of(directory, record),
            f"{figures.get('rows', ended):,}",
            f"{figures.get('failed', 0):,}",
            f"{figures.get('calls', 0):,}",
            ago(record.created_at),
            escape(record.out),
        )
    console.print(table)


def show_run(console: Console, directory: RunDirectory, record: RunRecord) -> None:
    state = state_of(directory, record)
    lines = {
        "run": record.id,
        "flow": f"{record.flow} ({record.flow_path or 'of a program'})",
        "state": state + (f": {record.detail}" if record.detail else ""),
        "inputs": record.inputs or "of a program",
        "out": record.out,
        "calls go to": record.url or ", ".join(record.engines),
        "begun": _instant(record.created_at),
        "changed": _instant(record.changed_at),
        "kept in": " and ".join(filter(None, (record.bus, str(directory.path)))),
    }
    if expected := forecast_text(record):
        lines["expected"] = expected
    if record.waits_for and state == "running":
        lines["waits for"] = record.waits_for
    if record.fallbacks:
        lines["on_error"] = "\n".join(fallback_texts(record))
    table = Table(box=None, pad_edge=False, show_header=False)
    for name, value in (*lines.items(), *((k, f"{v:,}") for k, v in record.figures.items())):
        table.add_row(name.replace("_", " "), escape(value))
    console.print(table)
    if state in ("stopped", "interrupted") or record.has_failures:
        console.print(f"\nkairos runs resume {record.id} goes on with it", soft_wrap=True)


def short(number: int) -> str:
    """Return a number as it is up to 9,999, else with a unit, as in 1.2M."""
    for unit, size in (("G", 10**9), ("M", 10**6), ("k", 10**4)):
        if number >= size:
            return f"{number / (1000 if unit == 'k' else size):.3g}{unit}"
    return f"{number:,}"


def duration(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = seconds / 60
    return f"{minutes:.0f} min" if minutes < 100 else f"{minutes / 60:.1f} h"


def ago(at_us: int) -> str:
    return f"{duration(max(0.0, time.time() - at_us / SECOND))} ago"


def _instant(at_us: int) -> str:
    return datetime.fromtimestamp(at_us / SECOND, UTC).isoformat(" ", "seconds")
