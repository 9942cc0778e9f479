"""`kairos run`: declared workflows over tables."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

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
    absolute,
    retrieval,
    switched_off,
)
from kairos.cli.run_follow import follow
from kairos.cli.running import run as run_loop
from kairos.core import SetupError

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

# Options that a run's record has as they are given.
_AS_GIVEN = (
    *("url", "api_key_env", "model", "revision", "service_class", "concurrency", "max_calls"),
    *("max_tokens", "on", "partitions", "results"),
)


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
    given = locals()
    from kairos.cli.flows.flow_profiled import expecting, known_batches, known_profile
    from kairos.cli.flows.flow_run import check_task, new_record, runs_root
    from kairos.workflows import RunStore, load_flow, table_path

    _check_together(given)
    table = table_path(flow, inputs)
    loaded = load_flow(flow, functions)
    store = RunStore(directory or runs_root(os.environ))
    record = new_record(
        store,
        loaded.declaration,
        flow_path=str(flow.absolute()),
        functions_path=absolute(functions),
        inputs=str(table.absolute()),
        out=str(out.absolute()),
        engines=tuple(engine or ()),
        host=absolute(host),
        passes=switched_off(without or []),
        batches=known_batches(learnt, flow),
        learnt=None if host is None else known_profile(learnt, flow),
        retrieval=retrieval(embedder, reranker, collections),
        uses_cache=not no_cache,
        **{name: given[name] for name in _AS_GIVEN},
    )
    task = check_task(record, loaded.declaration, loaded.functions, table)
    if engine_profile is not None:
        task = expecting(task, learnt, flow, engine_profile)
    run_loop(follow(task, store, log_dir=str(log) if log else None))


def _check_together(given: Mapping[str, Any]) -> None:
    """Check options that require or exclude another one.

    Raises:
        SetupError: An option has no effect without another, or contradicts another.
    """
    from kairos.cli.flows.flow_run import PERFORMERS

    engine, on = given["engine"], given["on"]
    if bool(engine) + (given["url"] is not None) + (given["host"] is not None) > 1:
        raise SetupError(PERFORMERS)
    if on is None and given["partitions"] is not None:
        raise SetupError("--partitions goes with --on local-ray, or ray://HEAD:PORT")
    if on is not None and given["log"] is not None:
        raise SetupError("--log and --on exclude each other: leave one of them out")
    if given["engine_profile"] is not None and not engine:
        raise SetupError(
            "--engine-profile goes with --engine: of a Kairos elsewhere nobody knows here how many "
            "engines it has"
        )
