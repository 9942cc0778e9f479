"""The demo's view of a run."""

from types import SimpleNamespace

from rich.console import Console

from kairos.cli.demos.command import show_tables
from kairos.core import CallRow, RunMetrics
from tests.support.simulate import build


def test_tokens_are_summed_by_agent_and_calls_without_any_count_as_calls():
    metrics = RunMetrics()
    for n, (agent, prompt, completion) in enumerate(
        [("reader", 100, 30), ("reader", 200, 51), ("reader", None, None), ("writer", 7, 5)]
    ):
        request = build.request(f"r{n}", app="qa", agent=agent)
        metrics.rows.append(
            CallRow(request, prompt_tokens=prompt, completion_tokens=completion, ended_at=1)
        )
    console = Console(width=200, force_terminal=False)
    with console.capture() as captured:
        show_tables(console, SimpleNamespace(metrics=metrics))

    shown = [line.strip("\u2502 ").split("\u2502") for line in captured.get().splitlines()]
    rows = [[cell.strip() for cell in cells] for cells in shown]
    assert ["qa", "reader", "3", "300", "81", "27"] in rows
    assert ["qa", "writer", "1", "7", "5", "5"] in rows
