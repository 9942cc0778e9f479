"""`kairos run`: declared workflows over tables."""

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from kairos.cli.flow_options import (
    ApiKeyEnv,
    CollectionsPlace,
    Directory,
    Embedders,
    Engines,
    FlowFile,
    FunctionsFile,
    Model,
    On,
    Partitions,
    Rerankers,
    Results,
    Url,
    Without,
    retrieval,
    switched_off,
)
from kairos.cli.options import fill_options, with_options
from kairos.cli.run_follow import follow
from kairos.cli.running import run as run_loop


class RunFlow(msgspec.Struct, frozen=True, kw_only=True):
    flow: FlowFile
    out: Annotated[
        Path,
        typer.Option(
            help="The table to write: .jsonl, .csv, .tsv, .parquet, .arrow. It must not be there "
            "yet."
        ),
    ]
    inputs: Annotated[
        Path | None,
        typer.Option(
            help="The table of rows: .jsonl, .json, .csv, .tsv (these also .gz), .parquet, .arrow, "
            ".feather. A batch has its own."
        ),
    ] = None
    engine: Engines = None
    url: Url = None
    host: Annotated[
        Path | None,
        typer.Option(
            help="A .toml file of models, instead of engines: each device of this machine serves "
            "one model at a time. Kairos starts and stops the engines."
        ),
    ] = None
    api_key_env: ApiKeyEnv = None
    model: Model = None
    functions: FunctionsFile = None
    embedder: Embedders = None
    reranker: Rerankers = None
    collections: CollectionsPlace = None
    without: Without = None
    revision: Annotated[
        str, typer.Option(help="Revision of the models; a change invalidates cached results.")
    ] = ""
    no_cache: Annotated[
        bool, typer.Option("--no-cache", help="Results of earlier runs do not count.")
    ] = False
    concurrency: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=5000,
            help=r"Calls, and functions, and requests of embedding or ranking, at once "
            r"\[what the engines say; with --url 64].",
        ),
    ] = None
    max_calls: Annotated[
        int | None,
        typer.Option(min=1, help="Maximum number of calls; a resumed run may make as many again."),
    ] = None
    max_tokens: Annotated[
        int | None,
        typer.Option(min=1, help="Maximum number of tokens; a resumed run may use as many again."),
    ] = None
    service_class: Annotated[
        str, typer.Option("--class", help="Class of service of the calls; batch: what is spare.")
    ] = "batch"
    log: Annotated[
        Path | None,
        typer.Option(help="Log facts and decisions here, for `kairos explain`. Needs --engine."),
    ] = None
    learnt: Annotated[
        Path | None,
        typer.Option(
            "--profile",
            help=r"Profile of the flow, from kairos profile: for batches of processors, for times "
            r"with --host, for forecasts with --engine-profile \[FLOW.profile.json if present].",
        ),
    ] = None
    engine_profile: Annotated[
        str | None,
        typer.Option(
            help="Engine profile, to show predicted next to actual times. Needs --engine."
        ),
    ] = None
    on: On = None
    partitions: Partitions = None
    results: Results = None
    directory: Directory = None


@with_options
def run(given: RunFlow) -> None:
    """Run a declared workflow over a table: one row in, one row out, each exactly once.

    Everything is checked before anything is spent. Ctrl-C, a crash and a full disk lose nothing:
    `kairos runs resume` continues. Results of calls are cached, so a second run over the same rows
    makes no calls, and an edited flow only the changed ones. Failed rows are in a separate table
    (OUT.errors), and the exit status is 3.

    Examples:

    kairos run summarise.yaml --inputs docs.parquet --out out.parquet --engine http://gpu1:8000

    kairos run review.py --inputs tickets.csv --out review.jsonl --url http://kairos:8000

    kairos run debate.yaml --inputs docs.parquet --out out.parquet --host host.toml

    kairos run batch.jsonl --out answers.jsonl --engine http://gpu1:8000

    kairos run reports.yaml --inputs docs.parquet --out out.parquet --engine http://gpu1:8000
    --results postgresql://kairos@db/results

    kairos run reports.yaml --inputs docs.parquet --out out.parquet --engine http://gpu1:8000
    --on local-ray
    """
    from kairos.workflows import FlowRuns, RunOptions

    options = fill_options(
        RunOptions,
        given,
        engines=tuple(given.engine or ()),
        retrieval=retrieval(given.embedder, given.reranker, given.collections),
        passes=switched_off(given.without or []),
        uses_cache=not given.no_cache,
        log_dir=given.log,
    )
    runs = FlowRuns(given.directory)
    run_loop(follow(runs, runs.prepare(options)))
