"""The demo from beginning to end: one run, or two orders compared; its figures."""

import asyncio
import json
import os
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

import msgspec
import typer
from rich.console import Console

from kairos.cli.demos import view
from kairos.cli.demos.engines import Kind
from kairos.cli.demos.gain import Gain, simulated_gain
from kairos.cli.demos.options import Options
from kairos.cli.demos.plan import Arrivals, DemoSubmission, plan_arrivals, plan_submissions
from kairos.cli.demos.progress import show_progress
from kairos.cli.demos.run import Run, engines_of_an_order, started, write_record
from kairos.cli.demos.tables import show_comparison
from kairos.core import compare_metrics
from kairos.settings import Settings

SHOWN_FAILURES = 5
BUSY = 0.3  # of the machine's cores, by others: times measured beside it say nothing
LOOK_S = 1.0  # for which is looked whether it is busy


async def demo(
    settings: Sequence[Settings], kind: Kind | None, options: Options, *, as_json: bool
) -> bool:
    """Run the tasks, or compare two orders on them, and show the result.

    With two settings, which differ in their policy, the verdict comes from the model of the engines
    in virtual time. Then both orders run at the same time, each with its own Kairos and engines,
    and each task is given to both, alternating which is first: other load on the machine delays
    both alike. Engines that are not started here are used by one order after the other,
    without a verdict, since they have no model. Only the first run is recorded.

    Returns:
        Whether all workflows succeeded; with two orders, whether any did under each.

    Raises:
        SetupError: The plan is impossible, or an engine cannot be used.
    """
    console = Console(stderr=as_json)
    arrivals = plan_arrivals(options)
    submissions = plan_submissions(options, arrivals.at_us)
    compared = len(settings) > 1
    gain = None
    busy = False
    if compared and kind is not None:
        gain = await _simulated(console, settings, kind, options)
        if not as_json:
            view.show_gain(console, gain)
        busy = await _is_busy()
        view.announce_runs(console, len(submissions), kind, busy=busy)
    runs: dict[str, Run] = {}
    try:
        if compared and kind is not None:
            await _follow_both(console, settings, kind, options, submissions, runs)
        else:
            await _follow_each(console, settings, kind, options, submissions, runs)
    finally:
        if runs:
            _report(console, runs, options, arrivals, gain, compared=compared, as_json=as_json)
    well = [_ended_well(name, run, len(submissions)) for name, run in runs.items()]
    if not compared:
        return all(well)
    if not as_json:
        view.show_times(console, runs, gain, trusted=all(well) and not busy)
    return all(run.finished for run in runs.values())


async def _simulated(
    console: Console, settings: Sequence[Settings], kind: Kind, options: Options
) -> Gain:
    """Compute the verdict in a thread, while its progress is shown."""
    line = "virtual time: starting"

    def on_progress(text: str) -> None:
        nonlocal line
        line = text

    progress = asyncio.create_task(show_progress(console, lambda: line))
    first, second = settings
    try:
        return await asyncio.to_thread(
            simulated_gain,
            kind,
            (first.policy, second.policy),
            first.placement,
            engines_of_an_order(kind),
            options.rate_per_s,
            arrivals=options.arrivals,
            on_progress=on_progress,
        )
    finally:
        progress.cancel()


async def _is_busy() -> bool:
    """Return whether other programs use this machine's cores right now."""
    cores = len(os.sched_getaffinity(0))
    before = _busy_seconds()
    await asyncio.sleep(LOOK_S)
    return (_busy_seconds() - before) / (LOOK_S * cores) > BUSY


def _busy_seconds() -> float:
    """Return the seconds that all cores have worked so far; 0 where the system does not say."""
    try:
        fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    except OSError:
        return 0.0
    user, nice, system, _, _, *interrupts = (int(field) for field in fields[:8])
    return (user + nice + system + sum(interrupts)) / os.sysconf("SC_CLK_TCK")


async def _follow_each(
    console: Console,
    settings: Sequence[Settings],
    kind: Kind | None,
    options: Options,
    submissions: Sequence[DemoSubmission],
    runs: dict[str, Run],
) -> None:
    """Run one order after the other; `runs` has the finished ones if the next fails."""
    record_to = options.record
    for each in settings:
        if len(settings) > 1:
            console.print(f"\nRun {len(runs) + 1} of {len(settings)}: policy {each.policy}")
        async with started(each, kind, options.seed, console.print) as run:
            await _follow(console, run, submissions, options.time_limit_s, record_to)
        runs[each.policy] = run
        record_to = None


async def _follow_both(
    console: Console,
    settings: Sequence[Settings],
    kind: Kind,
    options: Options,
    submissions: Sequence[DemoSubmission],
    runs: dict[str, Run],
) -> None:
    """Run two orders at the same time, on engines of their own."""
    count = engines_of_an_order(kind)
    async with AsyncExitStack() as stack:
        for each in settings:
            say = partial(_said_of, console, each.policy)
            run = await stack.enter_async_context(
                started(each, kind, options.seed, say, engines=count)
            )
            runs[each.policy] = run
        for run in runs.values():
            run.start()
        told = partial(view.both_progress, runs, len(submissions))
        progress = asyncio.create_task(show_progress(console, told))
        try:
            async with asyncio.TaskGroup() as tasks:
                for place, run in enumerate(runs.values()):
                    tasks.create_task(
                        run.to_the_end(
                            submissions, options.time_limit_s, turn=(place, len(settings))
                        )
                    )
        finally:
            progress.cancel()
            if options.record is not None:
                write_record(next(iter(runs.values())), options.record)


def _said_of(console: Console, policy: str, text: str) -> None:
    console.print(f"{policy}: {text}")


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
    gain: Gain | None,
    *,
    compared: bool,
    as_json: bool,
) -> None:
    records = {name: run.metrics.record() for name, run in runs.items()}
    first = next(iter(runs))
    if as_json:
        record = compare_metrics(records) if compared else records[first]
        simulated = {} if gain is None else {"simulated": msgspec.to_builtins(gain)}
        typer.echo(json.dumps({**record, **simulated}))
        return
    view.show_answers(console, list(runs[first].outcomes.values()))
    if len(runs) > 1:
        if gain is None:
            show_comparison(console, compare_metrics(records))
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
