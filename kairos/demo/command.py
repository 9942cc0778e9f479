"""The demo from beginning to end: one run, or the same tasks under two policies; its figures."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import typer
from rich.console import Console

from kairos.config import Settings
from kairos.demo import view
from kairos.demo.engines import Kind
from kairos.demo.options import Options
from kairos.demo.plan import Arrivals, DemoSubmission, plan_arrivals, plan_submissions
from kairos.demo.progress import show_progress
from kairos.demo.run import Run, started, write_record
from kairos.demo.tables import show_comparison
from kairos.metrics import comparison

SHOWN_FAILURES = 5


async def demo(
    settings: Sequence[Settings], kind: Kind | None, options: Options, *, as_json: bool
) -> bool:
    """Run once under each of the settings, which differ in their policy, and show what came of it.

    Each run has a Kairos of its own, and engines of its own where they are started here: nothing
    that one has learnt or cached helps the next. What has ended is shown even if the next breaks
    off. Only the first is recorded.

    Returns:
        Whether all workflows of all runs ended well.

    Raises:
        SetupError: the plan is impossible, or an engine cannot be used.
    """
    console = Console(stderr=as_json)
    arrivals = plan_arrivals(options)
    submissions = plan_submissions(options, arrivals.at_us)
    runs: dict[str, Run] = {}
    record_to = options.record
    try:
        for each in settings:
            if len(settings) > 1:
                console.print(f"\nRun {len(runs) + 1} of {len(settings)}: policy {each.policy}")
            async with started(each, kind, options.seed, console.print) as run:
                await _follow(console, run, submissions, options.time_limit_s, record_to)
            runs[each.policy] = run
            record_to = None
    finally:
        if runs:
            _report(console, runs, options, arrivals, compared=len(settings) > 1, as_json=as_json)
    well = [_ended_well(name, run, len(submissions)) for name, run in runs.items()]
    return all(well)


async def _follow(
    console: Console,
    run: Run,
    submissions: Sequence[DemoSubmission],
    limit_s: float,
    record_to: Path | None,
) -> None:
    told = partial(view.progress, run, len(submissions))
    progress = asyncio.create_task(show_progress(console, told))
    try:
        await run.to_the_end(submissions, limit_s)
    finally:
        progress.cancel()
        if record_to is not None:
            write_record(run, record_to)


def _report(
    console: Console,
    runs: Mapping[str, Run],
    options: Options,
    arrivals: Arrivals,
    *,
    compared: bool,
    as_json: bool,
) -> None:
    records = {name: run.metrics.record() for name, run in runs.items()}
    first = next(iter(runs))
    if as_json:
        typer.echo(json.dumps(comparison(records) if compared else records[first]))
        return
    view.show_answers(console, list(runs[first].outcomes.values()))
    if len(runs) > 1:
        show_comparison(console, comparison(records))
        view.show_gain(console, runs)
    else:
        view.show_tables(console, runs[first])
    view.show_arrivals(console, options.arrivals, arrivals)


def _ended_well(policy: str, run: Run, total: int) -> bool:
    """Says what did not."""
    failed = [o for o in run.outcomes.values() if o.result and "error" in o.result]
    for outcome in failed[:SHOWN_FAILURES]:
        assert outcome.result is not None
        what = f"{outcome.workflow_id} failed under {policy}: {outcome.result['error']}"
        typer.echo(f"kairos: {what}", err=True)
    if unfinished := total - run.finished:
        typer.echo(
            f"kairos: {unfinished} of {total} workflows did not finish in time under {policy}; the "
            "machine may be busy: try fewer --workflows, or a higher --time-limit",
            err=True,
        )
    return not failed and not unfinished
