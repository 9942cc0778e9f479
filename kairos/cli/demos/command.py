"""The demo from beginning to end: one run, or two orders compared, and what is shown of them."""

import asyncio
import json
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial

import msgspec
import typer
from rich.bar import Bar
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from kairos.cli.demo import Demo
from kairos.cli.demos.engines import Kind
from kairos.cli.demos.gain import Gain, simulated_gain
from kairos.cli.demos.plan import plan_submissions
from kairos.cli.demos.progress import show_progress
from kairos.cli.demos.run import ENGINES_OF_AN_ORDER, Outcome, Run, started
from kairos.cli.demos.tables import BAR_WIDTH, show_comparison, show_record, told_burstiness
from kairos.core import CallRow, compare_metrics
from kairos.settings import Settings
from kairos.simulate import PlannedArrivals, plan_arrivals, write_recording

_SHOWN_FAILURES = 5
_ANSWER_LENGTH = 600


async def demo(settings: Sequence[Settings], kind: Kind | None, options: Demo) -> bool:
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
    return await _Demo(settings, kind, options).run()


class _Demo:
    def __init__(self, settings: Sequence[Settings], kind: Kind | None, options: Demo) -> None:
        self._settings, self._kind, self._options = settings, kind, options
        self._console = Console(stderr=options.as_json)
        self._arrivals = plan_arrivals(
            options.arrivals, options.workflows, options.rate, options.seed
        )
        self._submissions = plan_submissions(options, self._arrivals.at_us)
        self._runs: dict[str, Run] = {}  # by policy; those that ended, if the next fails
        self._gain: Gain | None = None

    async def run(self) -> bool:
        is_compared = len(self._settings) > 1
        try:
            if is_compared and self._kind is not None:
                self._gain = await self._simulate(self._kind)
                if not self._options.as_json:
                    _show_gain(self._console, self._gain)
                self._announce_runs(self._kind)
                await self._follow_both(self._kind)
            else:
                await self._follow_each()
        finally:
            if self._runs:
                self._report(is_compared=is_compared)
        well = [self._ended_well(name, run) for name, run in self._runs.items()]
        if not is_compared:
            return all(well)
        if not self._options.as_json:
            self._show_times(trusted=all(well))
        return all(run.finished for run in self._runs.values())

    @asynccontextmanager
    async def _showing(self, told: Callable[[], Text | str]) -> AsyncIterator[None]:
        progress = asyncio.create_task(show_progress(self._console, told))
        try:
            yield
        finally:
            progress.cancel()

    async def _simulate(self, kind: Kind) -> Gain:
        """Compute the verdict in a thread, while its progress is shown."""
        line = "virtual time: starting"

        def on_progress(text: str) -> None:
            nonlocal line
            line = text

        first, second = self._settings
        async with self._showing(lambda: line):
            return await asyncio.to_thread(
                simulated_gain,
                kind,
                (first.policy, second.policy),
                first.placement,
                ENGINES_OF_AN_ORDER[kind],
                self._options.rate,
                arrivals=self._options.arrivals,
                on_progress=on_progress,
            )

    async def _follow_each(self) -> None:
        record_to = self._options.record
        for each in self._settings:
            if len(self._settings) > 1:
                said = f"Run {len(self._runs) + 1} of {len(self._settings)}: policy {each.policy}"
                self._console.print(f"\n{said}")
            async with started(each, self._kind, self._options.seed, self._console.print) as run:
                try:
                    async with self._showing(partial(self._progress_of, run)):
                        await run.to_the_end(self._submissions, self._options.time_limit)
                finally:
                    if record_to is not None:
                        write_recording(record_to, run.metrics.rows)
            self._runs[each.policy] = run
            record_to = None

    async def _follow_both(self, kind: Kind) -> None:
        """Run two orders at the same time, on engines of their own."""
        count, options = ENGINES_OF_AN_ORDER[kind], self._options
        async with AsyncExitStack() as stack:
            for each in self._settings:
                say = partial(self._say_of, each.policy)
                starting = started(each, kind, options.seed, say, engines=count)
                self._runs[each.policy] = await stack.enter_async_context(starting)
            for run in self._runs.values():
                run.start()
            try:
                async with self._showing(self._both_progress), asyncio.TaskGroup() as tasks:
                    for place, run in enumerate(self._runs.values()):
                        turn = place, len(self._settings)
                        ending = run.to_the_end(self._submissions, options.time_limit, turn=turn)
                        tasks.create_task(ending)
            finally:
                if options.record is not None:
                    first = next(iter(self._runs.values()))
                    write_recording(options.record, first.metrics.rows)

    def _say_of(self, policy: str, text: str) -> None:
        self._console.print(f"{policy}: {text}")

    def _announce_runs(self, kind: Kind) -> None:
        """Say what is run for real, and what its times are worth."""
        what = {"llama": "real model servers", "sim": "stand-ins", "vllm": "real vLLM engines"}
        self._console.print(
            f"\nNow {len(self._submissions)} tasks on {what[kind]}: both orders at the same time, "
            "each on its own. This shows how it works; the verdict is the one above.",
            soft_wrap=True,
        )

    def _report(self, *, is_compared: bool) -> None:
        runs, gain = self._runs, self._gain
        records = {name: run.metrics.record() for name, run in runs.items()}
        first = next(iter(runs))
        if self._options.as_json:
            record = compare_metrics(records) if is_compared else records[first]
            simulated = {} if gain is None else {"simulated": msgspec.to_builtins(gain)}
            typer.echo(json.dumps({**record, **simulated}))
            return
        _show_answers(self._console, list(runs[first].outcomes.values()))
        if len(runs) > 1:
            if gain is None:
                show_comparison(self._console, compare_metrics(records))
        else:
            show_tables(self._console, runs[first])
        _show_arrivals(self._console, self._options.arrivals, self._arrivals)

    def _ended_well(self, policy: str, run: Run) -> bool:
        """Return whether all tasks of a run succeeded, and say what did not."""
        total = len(self._submissions)
        failed = [o for o in run.outcomes.values() if o.result and "error" in o.result]
        for outcome in failed[:_SHOWN_FAILURES]:
            assert outcome.result is not None
            what = f"{outcome.workflow_id} failed under {policy}: {outcome.result['error']}"
            typer.echo(f"kairos: {what}", err=True)
        if unfinished := total - run.finished:
            typer.echo(
                f"kairos: {unfinished} of {total} workflows did not finish in time under {policy}; "
                "the machine may be busy: try fewer --workflows, or a higher --time-limit",
                err=True,
            )
        return not failed and not unfinished

    def _progress_of(self, run: Run) -> Text:
        balancer = run.service.brain.balancer
        ledger = balancer.ledger
        running = "  ".join(
            f"{instance.id} {'#' * ledger.running(instance.id):<{min(instance.max_num_seqs, 16)}}"
            for instance in ledger.instances.values()
        )
        return Text(
            f"{run.elapsed_s:5.1f} s  finished {run.finished}/{len(self._submissions)}  "
            f"submitted {len(run.outcomes)}  queue {balancer.waiting}  running {running}"
        )

    def _both_progress(self) -> Text:
        width = max(map(len, self._runs))
        lines = [
            Text(f"{name:<{width}} ") + self._progress_of(run) for name, run in self._runs.items()
        ]
        return Text("\n").join(lines)

    def _show_times(self, *, trusted: bool) -> None:
        """Show how long tasks took on the engines that ran, without a verdict."""
        if not trusted:
            self._console.print(
                "\nThe times of these runs are not compared: tasks failed or did not end in time."
            )
        else:
            for name, run in self._runs.items():
                took = [each.took_s for each in run.outcomes.values() if each.took_s is not None]
                mean_s = sum(took) / len(took)
                self._console.print(f"\n{name}: {mean_s:.1f} s per task, {len(took)} tasks")
            self._console.print(
                "These are single runs on this machine, an impression and no measurement."
            )
        if self._gain is not None:
            said = f"\n[bold]In virtual time: {verdict(self._gain)}[/]"
            self._console.print(said, soft_wrap=True)


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


def _show_arrivals(console: Console, name: str, planned: PlannedArrivals) -> None:
    console.print(f"\n[bold]Arrivals[/] {name}: {planned.source} (-: too few to tell)")
    for what, figures in (
        ("the trace", planned.trace),
        ("20,000 arrivals generated like it", planned.process),
        ("this run", planned.here),
    ):
        console.print(f"  {what}: {told_burstiness(figures)}", soft_wrap=True)
