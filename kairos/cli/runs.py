"""`kairos runs`: what became of runs of declared workflows, and how to go on with them."""

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
from kairos.cli.options import AsJson
from kairos.cli.run_follow import follow
from kairos.cli.running import run as run_loop

app = typer.Typer(
    help="Runs of declared workflows: list, show, resume and cancel them.", rich_markup_mode="rich"
)

Run = Annotated[str, typer.Argument(metavar="RUN", help="Name of the run, or a prefix of it.")]


@app.command("list")
def runs_list(directory: Directory = None, as_json: AsJson = False) -> None:
    """List runs, the latest first. Runs that were not used for 30 days are removed."""
    import msgspec
    from rich.console import Console

    from kairos.workflows import FlowRuns

    runs = FlowRuns(directory)
    if as_json:
        typer.echo(msgspec.json.encode(runs.describe_all()).decode())
    else:
        runs.show_all(Console())


@app.command("show")
def runs_show(run: Run, directory: Directory = None, as_json: AsJson = False) -> None:
    """Show a run: what it was to do, how far it is, what it spent and what was saved."""
    import msgspec
    from rich.console import Console

    from kairos.workflows import FlowRuns

    runs = FlowRuns(directory)
    if as_json:
        typer.echo(msgspec.json.encode(runs.describe(run)).decode())
    else:
        runs.show(Console(), run)


@app.command("resume")
def runs_resume(
    run: Run,
    engine: Annotated[
        list[str] | None, typer.Option(help="Other engines than those it had; repeat for each.")
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
    from kairos.workflows import FlowRuns, RunPlaces

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
    runs = FlowRuns(directory)
    run_loop(follow(runs, runs.resume(run, places, results)))


@app.command("cancel")
def runs_cancel(run: Run, directory: Directory = None) -> None:
    """Stop a run for good, and remove its results.

    Calls in flight finish. Results in its database (--results) are removed, too; cached answers
    remain for other runs. A finished run is not changed.
    """
    from kairos.workflows import FlowRuns

    record, is_changed = FlowRuns(directory).cancel(run)
    if is_changed:
        typer.echo(f"kairos: {record.id} is cancelled")
    else:
        typer.echo(f"kairos: {record.id} is {record.state} already: nothing was changed")
