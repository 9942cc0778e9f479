"""Output of a demo: progress while it runs, answers and tables at its end."""

from collections import defaultdict
from collections.abc import Mapping, Sequence

from rich.bar import Bar
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from kairos.cli.demos.engines import Kind
from kairos.cli.demos.gain import Gain
from kairos.cli.demos.plan import Arrivals
from kairos.cli.demos.run import Outcome, Run
from kairos.cli.demos.tables import BAR_WIDTH, show_record, told_burstiness
from kairos.core import CallRow

ANSWER_LENGTH = 600


def progress(run: Run, total: int) -> Text:
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


def show_answers(console: Console, outcomes: Sequence[Outcome]) -> None:
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
    return text if len(text) <= ANSWER_LENGTH else text[:ANSWER_LENGTH] + " ..."


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


def show_gain(console: Console, gain: Gain) -> None:
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


def announce_runs(console: Console, tasks: int, kind: Kind, *, busy: bool) -> None:
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


def both_progress(runs: Mapping[str, Run], total: int) -> Text:
    """Return a line of progress for each of the orders."""
    width = max(map(len, runs))
    lines = [Text(f"{name:<{width}} ") + progress(run, total) for name, run in runs.items()]
    return Text("\n").join(lines)


def show_times(
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


def show_arrivals(console: Console, name: str, planned: Arrivals) -> None:
    console.print(f"\n[bold]Arrivals[/] {name}: {planned.source} (-: too few to tell)")
    for what, figures in (
        ("the trace", planned.trace),
        ("20,000 arrivals generated like it", planned.process),
        ("this run", planned.here),
    ):
        console.print(f"  {what}: {told_burstiness(figures)}", soft_wrap=True)
