"""The demo from beginning to end: one run, or two orders compared, and what is shown of them."""

import asyncio
import json
import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

import msgspec
import typer
from rich.bar import Bar
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from kairos.cli.demos.engines import Kind
from kairos.cli.demos.gain import Gain, simulated_gain
from kairos.cli.demos.options import Options
from kairos.cli.demos.plan import DemoSubmission, plan_submissions
from kairos.cli.demos.progress import show_progress
from kairos.cli.demos.run import Outcome, Run, engines_of_an_order, started, write_record
from kairos.cli.demos.tables import BAR_WIDTH, show_comparison, show_record, told_burstiness
from kairos.core import CallRow, compare_metrics
from kairos.settings import Settings
from kairos.simulate import PlannedArrivals, plan_arrivals

_SHOWN_FAILURES = 5
_BUSY = 0.3  # of the machine's cores, by others: times measured beside it say nothing
_LOOK_S = 1.0  # for which is looked whether it is busy

_ANSWER_LENGTH = 600


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
    arrivals = plan_arrivals(options.arrivals, options.workflows, options.rate_per_s, options.seed)
    submissions = plan_submissions(options, arrivals.at_us)
    compared = len(settings) > 1
    gain = None
    busy = False
    if compared and kind is not None:
        gain = await _simulated(console, settings, kind, options)
        if not as_json:
            _show_gain(console, gain)
        busy = await _is_busy()
        _announce_runs(console, len(submissions), kind, busy=busy)
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
        _show_times(console, runs, gain, trusted=all(well) and not busy)
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
    await asyncio.sleep(_LOOK_S)
    return (_busy_seconds() - before) / (_LOOK_S * cores) > _BUSY


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
        told = partial(_both_progress, runs, len(submissions))
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
    told = partial(_progress_of, run, len(submissions))
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
    arrivals: PlannedArrivals,
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
    _show_answers(console, list(runs[first].outcomes.values()))
    if len(runs) > 1:
        if gain is None:
            show_comparison(console, compare_metrics(records))
    else:
        show_tables(console, runs[first])
    _show_arrivals(console, options.arrivals, arrivals)


def _ended_well(policy: str, run: Run, total: int) -> bool:
    """Says what did not."""
    failed = [o for o in run.outcomes.values() if o.result and "error" in o.result]
    for outcome in failed[:_SHOWN_FAILURES]:
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


def _progress_of(run: Run, total: int) -> Text:
    """The queue, the instances and the finished workflows."""
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


def _show_answers(console: Console, outcomes: Sequence[Outcome]) -> None:
    """Show one answer of each application that has any."""
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
    return text if len(text) <= _ANSWER_LENGTH else text[:_ANSWER_LENGTH] + " ..."


def show_tables(console: Console, run: Run) -> None:
    console.print()
    show_record(console, run.metrics.record())
    console.print(_agents(run.metrics.rows))


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


def _show_gain(console: Console, gain: Gain) -> None:
    """Show two orders in virtual time as bars, and the verdict in one sentence."""
    engines = f"{gain.instances} engine{'s' if gain.instances > 1 else ''}"
    table = Table(
        title=f"Seconds per task, in virtual time: {gain.seeds} seeds of {gain.tasks} tasks on "
        f"{engines} of profile {gain.profile} for each order",
        title_justify="left",
    )
    table.add_column("app")
    table.add_column("order")
    table.add_column("mean", justify="right")
    table.add_column("95 % interval", justify="right")
    table.add_column("")
    longest = max(each.mean for pair in gain.seconds.values() for each in pair)
    for name, pair in gain.seconds.items():
        for policy, each in zip(gain.policies, pair, strict=True):
            table.add_row(
                escape(name) if policy == gain.policies[0] else "",
                policy,
                f"{each.mean:.1f}",
                f"{each.low:.1f} to {each.high:.1f}",
                Bar(longest, 0, each.mean, width=BAR_WIDTH),
                end_section=policy == gain.policies[1],
            )
    console.print(table)
    console.print(f"[bold]{verdict(gain)}[/]", soft_wrap=True)


def verdict(gain: Gain) -> str:
    """Return which order is faster, by how much, and how sure that is, in one sentence."""
    first, second = gain.policies
    found = gain.ratio
    less = sorted(100 * (1 - each) for each in (found.low, found.high))
    among = f"95 % interval of {gain.seeds} seeds: {less[0]:.0f} to {less[1]:.0f} % less"
    if not gain.is_sure:
        return f"{first} and {second} take as long, as far as {gain.seeds} seeds show ({among})."
    change = f"{100 * abs(1 - found.mean):.0f} % {'less' if found.mean < 1 else 'more'}"
    return f"Under {first} a task takes {change} time than under {second} in the mean ({among})."


def _announce_runs(console: Console, tasks: int, kind: Kind, *, busy: bool) -> None:
    """Say what is run for real, and what its times are worth on this machine at this moment."""
    what = {"llama": "real model servers", "sim": "stand-ins", "vllm": "real vLLM engines"}[kind]
    console.print(
        f"\nNow {tasks} tasks on {what}: both orders at the same time, each on its own. This shows "
        "how it works; the verdict is the one above.",
        soft_wrap=True,
    )
    if busy:
        console.print(
            "This machine is busy with other programs: no times will be compared.", soft_wrap=True
        )


def _both_progress(runs: Mapping[str, Run], total: int) -> Text:
    """Return a line of progress for each of the orders."""
    width = max(map(len, runs))
    lines = [Text(f"{name:<{width}} ") + _progress_of(run, total) for name, run in runs.items()]
    return Text("\n").join(lines)


def _show_times(
    console: Console, runs: Mapping[str, Run], gain: Gain | None, *, trusted: bool
) -> None:
    """Show how long tasks took on the engines that ran, without a verdict."""
    if not trusted:
        console.print(
            "\nThe times of these runs are not compared: tasks failed or did not end in time, or "
            "the machine was busy."
        )
    else:
        for name, run in runs.items():
            took = [each.took_s for each in run.outcomes.values() if each.took_s is not None]
            console.print(f"\n{name}: {sum(took) / len(took):.1f} s per task, {len(took)} tasks")
        console.print("These are single runs on this machine, an impression and no measurement.")
    if gain is not None:
        console.print(f"\n[bold]In virtual time: {verdict(gain)}[/]", soft_wrap=True)


def _show_arrivals(console: Console, name: str, planned: PlannedArrivals) -> None:
    console.print(f"\n[bold]Arrivals[/] {name}: {planned.source} (-: too few to tell)")
    for what, figures in (
        ("the trace", planned.trace),
        ("20,000 arrivals generated like it", planned.process),
        ("this run", planned.here),
    ):
        console.print(f"  {what}: {told_burstiness(figures)}", soft_wrap=True)
