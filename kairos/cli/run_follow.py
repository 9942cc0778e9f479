"""Run of a flow in the terminal: shows its progress; after Ctrl-C it can be resumed."""

import asyncio
import os
import signal
from contextlib import suppress
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from kairos.workflows import DrivenRun, FlowRuns, FlowTask

FAILED_ROWS = 3  # the exit status
STOPPED = 130


async def follow(runs: "FlowRuns", task: "FlowTask") -> None:
    """Run a task and show its progress. Raises typer.Exit: Rows failed, or it was stopped."""
    from rich.console import Console

    from kairos.cli.demos.progress import show_progress
    from kairos.cli.run_engines import serve_engines
    from kairos.host import collect_less_often, switch_threads_often
    from kairos.workflows import progress_line, show_end

    console = Console(stderr=True)
    shown: list[asyncio.Task[None]] = []

    def watch(run: "DrivenRun") -> None:
        told = show_progress(console, lambda: progress_line(run.record.id, run.progress()))
        shown.append(asyncio.create_task(told))
        _stop_on_signals(run, asyncio.current_task())

    def note(line: str) -> None:
        console.print(f"kairos: {line}", soft_wrap=True, markup=False, highlight=False)

    collect_less_often()
    switch_threads_often()
    try:
        record = await runs.drive(task, serve_engines, note, watch)
    except asyncio.CancelledError:
        note(f"left at once: kairos runs resume {task.record.id} goes on from here")
        raise typer.Exit(STOPPED) from None
    finally:
        for each in shown:
            each.cancel()
            with suppress(asyncio.CancelledError):
                await each
    show_end(console, record)
    if record.state != "done":
        raise typer.Exit(STOPPED)
    if record.has_failures:
        raise typer.Exit(FAILED_ROWS)


def _stop_on_signals(run: "DrivenRun", task: "asyncio.Task[None] | None") -> None:
    """Handle signals: the first lets calls in flight finish, the second abandons them.

    The third ends the process, even if a function never returns.
    """
    told = 0

    def stop() -> None:
        nonlocal told
        told += 1
        if told == 1:
            in_flight = run.progress().figures.get("in_flight", 0)
            typer.echo(
                f"kairos: {in_flight} calls in flight may finish; Ctrl-C again leaves them",
                err=True,
            )
            run.stop()
        elif told == 2 and task is not None:
            task.cancel()
        else:
            os._exit(STOPPED)

    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop)
