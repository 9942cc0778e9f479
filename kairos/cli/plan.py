"""`kairos plan`: what a declared workflow would do."""

from pathlib import Path
from typing import Annotated

import typer

from kairos.cli.flow_options import FlowFile, FunctionsFile, Without, switched_off
from kairos.core import SetupError

_Inputs = Annotated[
    Path | None, typer.Option(help="The table of rows, to reckon with how many there are.")
]
_Host = Annotated[
    Path | None,
    typer.Option(help="Devices that switch models, a .toml file: what would run where, when."),
]
_Devices = Annotated[
    int | None, typer.Option(min=1, max=64, help="Override the number of devices in --host.")
]
_Learnt = Annotated[
    Path | None,
    typer.Option(
        "--profile",
        help=r"Profile of the flow, from kairos profile \[FLOW's name with .profile.json].",
    ),
]
_EngineProfile = Annotated[
    str | None,
    typer.Option(help="How long it would take on such engines: a profile's name, or a file."),
]
_Instances = Annotated[
    int, typer.Option(min=1, max=1_000, help="Number of engines, for --engine-profile.")
]
_AsPrimitives = Annotated[
    bool,
    typer.Option("--primitives", help="Show the engines' work for a row, part by part."),
]


def plan(
    flow: FlowFile,
    inputs: _Inputs = None,
    functions: FunctionsFile = None,
    without: Without = None,
    host: _Host = None,
    devices: _Devices = None,
    learnt: _Learnt = None,
    engine_profile: _EngineProfile = None,
    instances: _Instances = 1,
    as_primitives: _AsPrimitives = False,
    as_json: Annotated[bool, typer.Option("--json", help="The same, for a program.")] = False,
) -> None:
    """Explain what would be run: what is left out, merged and fetched, and how many calls are left.

    Nothing is asked of an engine.

    Examples:

    kairos plan summarise.yaml --inputs docs.parquet

    kairos plan debate.yaml --inputs docs.parquet --host host.toml --devices 2

    kairos plan reports.yaml --inputs docs.parquet --engine-profile a40-llama3-8b --instances 4
    """
    import msgspec

    from kairos.cli.flows.flow_placement import flow_placement
    from kairos.cli.flows.flow_profiled import (
        known_batches,
        known_profile,
        profile_path,
        read_profile,
    )
    from kairos.engines import load_profile as engine
    from kairos.workflows import (
        TYPICAL_LATENCIES,
        Passes,
        check_columns,
        compile_plan,
        explain_plan,
        forecast_flow,
        load_flow,
        measured_latencies,
        open_table,
        plan_lines,
        predict_flow,
        primitive_lines,
    )

    loaded = load_flow(flow, functions)
    costs, known = TYPICAL_LATENCIES, None
    if learnt is not None or host is not None:
        known = known_profile(learnt, flow)
    if engine_profile is not None:
        if inputs is None:
            raise SetupError("name the table that --engine-profile is to be reckoned for: --inputs")
        known = known or read_profile(learnt or profile_path(flow))
        costs = measured_latencies(engine(engine_profile), known.answers, known.times_us)
    passes = Passes(**switched_off(without or []))
    batches = known_batches(learnt, flow)
    made = compile_plan(loaded.declaration, passes, latencies=costs, batches=batches)
    loaded.functions.check(made)
    if as_primitives:
        typer.echo("\n".join(primitive_lines(made.primitives())))
        return
    prediction = expected = None
    if inputs is not None:
        table = open_table(inputs)
        check_columns(made, table)
        readable = (row.values for row in table.rows() if row.values is not None)
        prediction = predict_flow(made, readable)
    if engine_profile is not None and known is not None:
        readable = (row.values for row in table.rows() if row.values is not None)
        pool, count = engine(engine_profile), prediction.rows if prediction else None
        expected = forecast_flow(made, known, readable, pool, instances, count)
    placement = flow_placement(made, prediction, host, devices, known) if host is not None else None
    explained = explain_plan(made, prediction, placement, expected)
    shown = msgspec.json.encode(explained).decode() if as_json else "\n".join(plan_lines(explained))
    typer.echo(shown)
