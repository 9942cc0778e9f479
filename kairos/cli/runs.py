"""`kairos runs`: what became of runs of declared workflows, and how to go on with them."""

import os
import time
from pathlib import Path
from typing import Annotated

import typer

from kairos.cli.flow_options import (
    ApiKeyEnv,
    CollectionsPlace,
    Directory,
    Embedders,
    FunctionsFile,
    Rerankers,
    absolute,
    retrieval,
)
from kairos.cli.run_follow import follow
from kairos.cli.running import run as run_loop
from kairos.core import SetupError

_STOP_S = 600.0  # for calls in flight

app = typer.Typer(
    help="Runs of declared workflows: list, show, resume and cancel them.",
    rich_markup_mode="rich",
)

Run = Annotated[str, typer.Argument(metavar="RUN", help="Name of the run, or a prefix of it.")]


@app.command("list")
def runs_list(
    directory: Directory = None,
    as_json: Annotated[bool, typer.Option("--json", help="The same, for a program.")] = False,
) -> None:
    """List runs, the latest first. Runs that were not used for 30 days are removed."""
    import msgspec
    from rich.console import Console

    from kairos.cli.flows.flow_run import runs_root
    from kairos.workflows import RunStore, show_runs, state_of

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

    from kairos.cli.flows.flow_run import runs_root
    from kairos.workflows import RunStore, show_run, state_of

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
    host: Annotated[
        Path | None, typer.Option(help="Another file of models whose engines Kairos starts.")
    ] = None,
    api_key_env: ApiKeyEnv = None,
    embedder: Embedders = None,
    reranker: Rerankers = None,
    collections: CollectionsPlace = None,
    results: Annotated[
        str | None,
        typer.Option(
            help="The PostgreSQL that has its results, where this host has nothing of it: give the "
            "run's whole name."
        ),
    ] = None,
    flow: Annotated[
        Path | None, typer.Option(help="Where its flow is, if it is elsewhere on this host.")
    ] = None,
    functions: FunctionsFile = None,
    inputs: Annotated[Path | None, typer.Option(help="The same of its table.")] = None,
    out: Annotated[Path | None, typer.Option(help="The same of the table to write.")] = None,
    directory: Directory = None,
) -> None:
    """Go on with a run that was stopped or killed, or try its failed rows again.

    What has ended stays as it is, and results that are known are not computed again: as far as the
    flow and the rows are what they were. An edited flow computes what changed.

    A run with --results can be resumed on any host. If it is executed elsewhere still, that ends. A
    host that has nothing of the run takes no file, engine or key from the database: name them all.

    Examples:

    kairos runs resume reports-3fa9c2d1

    kairos runs resume reports-3fa9c2d1 --results postgresql://kairos@db/results
    --flow reports.yaml --inputs docs.parquet --out out.parquet --engine http://gpu1:8000
    """
    from kairos.cli.flows.flow_run import PERFORMERS, check_task, runs_root
    from kairos.cli.flows.run_found import find_run
    from kairos.workflows import RunPlaces, RunStore, load_flow

    if bool(engine) + (url is not None) + (host is not None) > 1:
        raise SetupError(PERFORMERS)
    store = RunStore(directory or runs_root(os.environ))
    places = RunPlaces(
        flow_path=absolute(flow),
        functions_path=absolute(functions),
        inputs=absolute(inputs),
        out=absolute(out),
        engines=tuple(engine or ()),
        url=url,
        host=absolute(host),
        api_key_env=api_key_env,
        retrieval=retrieval(embedder, reranker, collections),
    )
    found, record = find_run(store, run, results, places)
    flow_path, table = record.flow_path, record.inputs
    if flow_path is None or table is None or not record.out:
        raise SetupError(f"{record.id} belongs to a program, which alone can go on with it")
    functions_path = Path(record.functions_path) if record.functions_path else None
    loaded = load_flow(Path(flow_path), functions_path)
    task = check_task(record, loaded.declaration, loaded.functions, table)
    run_loop(follow(task, store, directory=found))


@app.command("cancel")
def runs_cancel(run: Run, directory: Directory = None) -> None:
    """Stop a run for good, and remove its results.

    Calls in flight finish. Results in its database (--results) are removed, too; cached answers
    remain for other runs. A finished run is not changed.
    """
    import msgspec

    from kairos.cli.flows.flow_run import runs_root
    from kairos.cli.flows.spread.run import forget_results
    from kairos.workflows import RunStore

    found = RunStore(directory or runs_root(os.environ)).find(run)
    found.stop_holder(_STOP_S)
    with found.held():
        before = found.read()
        if before.state in ("done", "cancelled"):
            typer.echo(f"kairos: {before.id} is {before.state} already: nothing was changed")
            return
        now = time.time_ns() // 1000
        record = msgspec.structs.replace(before, state="cancelled", changed_at=now)
        found.write(record)
        found.forget_results()
        forget_results(record)
    typer.echo(f"kairos: {record.id} is cancelled")
