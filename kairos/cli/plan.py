"""`kairos plan`: what a declared workflow would do."""

from pathlib import Path
from typing import Annotated

import typer

from kairos.cli.flow_options import FlowFile, FunctionsFile, Without, switched_off

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

    from kairos.workflows import ExplainOptions, explain_file, explain_primitives, plan_lines

    asked = ExplainOptions(
        flow=flow,
        functions=functions,
        inputs=inputs,
        passes=switched_off(without or []),
        host=host,
        devices=devices,
        learnt=learnt,
        engine_profile=engine_profile,
        instances=instances,
    )
    if as_primitives:
        typer.echo("\n".join(explain_primitives(asked)))
        return
    explained = explain_file(asked)
    shown = msgspec.json.encode(explained).decode() if as_json else "\n".join(plan_lines(explained))
    typer.echo(shown)
