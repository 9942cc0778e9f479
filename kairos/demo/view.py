"""What a demo shows: progress while it runs, answers and tables at its end."""

from collections import defaultdict
from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from kairos.call_row import CallRow
from kairos.confidence import ratio
from kairos.demo.plan import Arrivals
from kairos.demo.run import Outcome, Run
from kairos.demo.tables import show_record, told_burstiness

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


def show_gain(console: Console, runs: Mapping[str, Run]) -> None:
    """Two runs of the same tasks in one sentence, and how sure it is."""
    (one, first), (other, second) = runs.items()
    pairs = list(zip(first.outcomes.values(), second.outcomes.values(), strict=False))
    both = [(a.took_s, b.took_s) for a, b in pairs if a.took_s and b.took_s]
    found = ratio([a for a, _ in both], [b for _, b in both])
    if found is None:
        console.print("\nToo few tasks ended in both runs to compare them.")
        return
    unsure = found.low < 1 < found.high
    said = "; with so few that can be chance" if unsure else ""
    console.print(
        f"\n[bold]{len(both)} tasks under {one} took {found.mean:.2f} times as long as under "
        f"{other}[/], in the mean (95 % interval {found.low:.2f} to {found.high:.2f}, by bootstrap "
        f"over tasks{said}). Tasks of one run share a queue, so more seeds say more: --seed.",
        soft_wrap=True,
    )


def show_arrivals(console: Console, name: str, planned: Arrivals) -> None:
    console.print(f"\n[bold]Arrivals[/] {name}: {planned.source} (-: too few to tell)")
    for what, figures in (
        ("the trace", planned.trace),
        ("20,000 arrivals generated like it", planned.process),
        ("this run", planned.here),
    ):
        console.print(f"  {what}: {told_burstiness(figures)}", soft_wrap=True)
