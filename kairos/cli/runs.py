"""`kairos runs`: what became of runs of declared workflows, and how to go on with them."""

import os
import time
from pathlib import Path
from typing import Annotated

import typer

from kairos.cli.flow_options import ApiKeyEnv, Directory
from kairos.cli.run_follow import follow
from kairos.cli.running import run as run_loop
from kairos.errors import SetupError

_STOP_S = 600.0  # for calls in flight

app = typer.Typer(
    help="Runs of declared workflows: list, show, resume and cancel them.",
    rich_markup_mode="rich",
)

Run = Annotated[str, typer.Argument(metavar="RUN", help="Its name, or how that begins.")]


@app.command("list")
def runs_list(
    directory: Directory = None,
    as_json: Annotated[bool, typer.Option("--json", help="The same, for a program.")] = False,
) -> None:
    """List runs, the latest first. Those that nobody touched for 30 days are removed."""
    import msgspec
    from rich.console import Console

    from kairos.live.runs.run_store import RunStore
    from kairos.tools.flow_run import runs_root
    from kairos.tools.run_shown import show_runs, state_of

    found = RunStore(directory or runs_root(os.environ)).all()
    if as_json:
        shown = [msgspec.structs.asdict(r) | {"state": state_of(d, r)} for d, r in found]
        typer.echo(msgspec.json.encode(shown).decode())
    else:
        show_runs(Console(), found)


@app.command("show")
def runs_show(
    run: Run,
    directory: Directory = None,
    as_json: Annotated[bool, typer.Option("--json", help="The same, for a program.")] = False,
) -> None:
    """Show a run: what it was to do, how far it is, what it spent and what was saved."""
    import msgspec
    from rich.console import Console

    from kairos.live.runs.run_store import RunStore
    from kairos.tools.flow_run import runs_root
    from kairos.tools.run_shown import show_run, state_of

    found = RunStore(directory or runs_root(os.environ)).find(run)
    record = found.read()
    if as_json:
        shown = msgspec.structs.asdict(record) | {"state": state_of(found, record)}
        typer.echo(msgspec.json.encode(shown).decode())
    else:
        show_run(Console(), found, record)


@app.command("resume")
def runs_resume(
    run: Run,
    engine: Annotated[
        list[str] | None,
        typer.Option(help="Other engines than those it had; repeat for each."),
    ] = None,
    url: Annotated[str | None, typer.Option(help="Another Kairos than the one it had.")] = None,
    api_key_env: ApiKeyEnv = None,
    directory: Directory = None,
) -> None:
    """Go on with a run that was stopped or killed, or try its failed rows again.

    What has ended stays as it is, and results that are known are not computed again: as far as the
    flow and the rows are what they were. An edited flow computes what changed.

    Example: kairos runs resume reports-3fa9c2d1
    """
    import msgspec

    from kairos.live.runs.run_store import RunStore
    from kairos.tools.flow_file import load_flow
    from kairos.tools.flow_run import check_task, runs_root

    store = RunStore(directory or runs_root(os.environ))
    found = store.find(run)
    record = found.read()
    if record.state == "cancelled":
        raise SetupError(f"{record.id} was cancelled: its results are gone; begin a new run")
    flow_path, inputs = record.flow_path, record.inputs
    if flow_path is None or inputs is None:
        raise SetupError(f"{record.id} belongs to a program, which alone can go on with it")
    if engine or url:
        record = msgspec.structs.replace(
            record, engines=tuple(engine or ()), url=url, host=None, api_key_env=api_key_env
        )
    functions = Path(record.functions_path) if record.functions_path else None
    loaded = load_flow(Path(flow_path), functions)
    task = check_task(record, loaded.declaration, loaded.functions, inputs)
    run_loop(follow(task, store, directory=found))


@app.command("cancel")
def runs_cancel(run: Run, directory: Directory = None) -> None:
    """Stop a run for good: what is in flight ends, and its results are removed."""
    import msgspec

    from kairos.live.runs.run_store import RunStore
    from kairos.tools.flow_run import runs_root

    found = RunStore(directory or runs_root(os.environ)).find(run)
    found.stop_holder(_STOP_S)
    with found.held():
        record = found.read()
        now = time.time_ns() // 1000
        found.write(msgspec.structs.replace(record, state="cancelled", changed_at=now))
        found.forget_results()
    typer.echo(f"kairos: {record.id} is cancelled")
