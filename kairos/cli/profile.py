"""`kairos profile`: what some rows teach about a declared workflow."""

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kairos.cli.flow_options import (
    ApiKeyEnv,
    CollectionsPlace,
    Embedders,
    Engines,
    FlowFile,
    FunctionsFile,
    Model,
    Rerankers,
    Url,
    retrieval,
)
from kairos.cli.running import run as run_loop
from kairos.core import SetupError

if TYPE_CHECKING:
    from kairos.workflows import FlowProfile, FlowSample

_Inputs = Annotated[Path | None, typer.Option(help="The table of rows, as `kairos run` takes it.")]
_Simulate = Annotated[
    str | None,
    typer.Option(help="Instead of engines: a simulated one of this profile, answers made up."),
]
_Out = Annotated[
    Path | None, typer.Option(help=r"The file to write \[FLOW's path with .profile.json].")
]


def profile(
    flow: FlowFile,
    inputs: _Inputs = None,
    rows: Annotated[int, typer.Option(min=1, max=10_000, help="Number of rows to use.")] = 20,
    seed: Annotated[int, typer.Option(min=0, help="Which rows: drawn at random by it.")] = 1,
    engine: Engines = None,
    url: Url = None,
    api_key_env: ApiKeyEnv = None,
    simulate: _Simulate = None,
    model: Model = None,
    functions: FunctionsFile = None,
    embedder: Embedders = None,
    reranker: Rerankers = None,
    collections: CollectionsPlace = None,
    out: _Out = None,
) -> None:
    """Learn from a few rows how long prompts and answers are, and how often each operator runs.

    The rows are really run, and functions with effects have them; nothing of it is kept but what
    was learnt: means with the middle 95 % of where they may lie, and shares of rows that filters
    and branches let through. `kairos plan --profile` reckons with it.

    What embeds, ranks, ingests and takes several calls at once is then asked for batches of 1, 2,
    4 ... items of these rows. Plans and runs use the efficient batch of each, where a flow
    declares none: the smallest one with 95 % of the best throughput.

    Factors of a placement's cost (`kairos plan --host`) are measured, too. One is how much of
    contexts engines find again, where they report it. The other is how much quicker several engines
    are than one: up to 32 of the calls are made again for it, at each engine and three times.

    Examples:

    kairos profile reports.yaml --inputs docs.parquet --engine http://gpu1:8000

    kairos profile reports.yaml --inputs docs.parquet --simulate a40-llama3-8b
    """
    from kairos.cli.run_engines import serve_engines
    from kairos.workflows import sample_flow

    sample = sample_flow(flow, functions, inputs, rows, seed)
    _check_performers(bool(engine) + (url is not None) + (simulate is not None), sample.plan.models)
    if simulate is not None:
        found = simulated_profile(sample, simulate)
    else:
        found = run_loop(
            sample.measure(
                serve_engines,
                engines=tuple(engine or ()),
                url=url,
                retrieval=retrieval(embedder, reranker, collections),
                api_key_env=api_key_env,
                model=model,
            )
        )
    typer.echo("\n".join(sample.keep_profile(found, out)))


def simulated_profile(sample: "FlowSample", engine_profile: str) -> "FlowProfile":
    """Learn a profile from rows on a simulated engine, with generated answers.

    Raises SetupError: The profile does not exist.
    """
    from kairos.simulate import observed_flow, pool_options

    pool = pool_options(instances=1, profile=engine_profile)
    _, seen = observed_flow(sample.plan, iter(sample.rows), sample.functions, pool)
    return sample.learn(seen)


def _check_performers(named: int, models: Collection[str | None]) -> None:
    """Check that one performer is named; a plan without models needs none.

    Raises SetupError: None is named, or several are.
    """
    if named != 1 and (named or models):
        raise SetupError(
            "name who performs the calls: --engine http://HOST:PORT (repeat for each), --url of a "
            "Kairos that runs, or --simulate PROFILE"
        )
