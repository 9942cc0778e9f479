"""`kairos run`: declared workflows over tables."""

from pathlib import Path
from typing import Annotated

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
from kairos.cli.run_follow import follow
from kairos.cli.running import run as run_loop

_Out = Annotated[
    Path,
    typer.Option(
        help="The table to write: .jsonl, .csv, .tsv, .parquet, .arrow. It must not be there yet."
    ),
]
_Inputs = Annotated[
    Path | None,
    typer.Option(
        help="The table of rows: .jsonl, .json, .csv, .tsv (these also .gz), .parquet, .arrow, "
        ".feather. A batch has its own."
    ),
]
_Host = Annotated[
    Path | None,
    typer.Option(
        help="A .toml file of models, instead of engines: each device of this machine serves "
        "one model at a time. Kairos starts and stops the engines."
    ),
]
_Revision = Annotated[
    str,
    typer.Option(help="Revision of the models; a change invalidates cached results."),
]
_NoCache = Annotated[bool, typer.Option("--no-cache", help="Results of earlier runs do not count.")]
_Concurrency = Annotated[
    int | None,
    typer.Option(
        min=1,
        max=5000,
        help=r"Calls, and functions, and requests of embedding or ranking, at once "
        r"\[what the engines say; with --url 64].",
    ),
]
_MaxCalls = Annotated[
    int | None,
    typer.Option(min=1, help="Maximum number of calls; a resumed run may make as many again."),
]
_MaxTokens = Annotated[
    int | None,
    typer.Option(min=1, help="Maximum number of tokens; a resumed run may use as many again."),
]
_ServiceClass = Annotated[
    str, typer.Option("--class", help="Class of service of the calls; batch: what is spare.")
]
_Log = Annotated[
    Path | None,
    typer.Option(help="Log facts and decisions here, for `kairos explain`. Needs --engine."),
]
_Learnt = Annotated[
    Path | None,
    typer.Option(
        "--profile",
        help=r"Profile of the flow, from kairos profile: for batches of processors, for times "
        r"with --host, for forecasts with --engine-profile \[FLOW.profile.json if present].",
    ),
]
_EngineProfile = Annotated[
    str | None,
    typer.Option(help="Engine profile, to show predicted next to actual times. Needs --engine."),
]


def run(
    flow: FlowFile,
    out: _Out,
    inputs: _Inputs = None,
    engine: Engines = None,
    url: Url = None,
    host: _Host = None,
    api_key_env: ApiKeyEnv = None,
    model: Model = None,
    functions: FunctionsFile = None,
    embedder: Embedders = None,
    reranker: Rerankers = None,
    collections: CollectionsPlace = None,
    without: Without = None,
    revision: _Revision = "",
    no_cache: _NoCache = False,
    concurrency: _Concurrency = None,
    max_calls: _MaxCalls = None,
    max_tokens: _MaxTokens = None,
    service_class: _ServiceClass = "batch",
    log: _Log = None,
    learnt: _Learnt = None,
    engine_profile: _EngineProfile = None,
    on: On = None,
    partitions: Partitions = None,
    results: Results = None,
    directory: Directory = None,
) -> None:
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

    options = RunOptions(
        flow=flow,
        out=out,
        inputs=inputs,
        functions=functions,
        engines=tuple(engine or ()),
        url=url,
        host=host,
        api_key_env=api_key_env,
        model=model,
        retrieval=retrieval(embedder, reranker, collections),
        passes=switched_off(without or []),
        revision=revision,
        uses_cache=not no_cache,
        concurrency=concurrency,
        max_calls=max_calls,
        max_tokens=max_tokens,
        service_class=service_class,
        log_dir=log,
        learnt=learnt,
        engine_profile=engine_profile,
        on=on,
        partitions=partitions,
        results=results,
    )
    runs = FlowRuns(directory)
    run_loop(follow(runs, runs.prepare(options)))
