"""`kairos plan`: what a declared workflow would do."""

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from kairos.cli.flow_options import FlowFile, FunctionsFile, Without, switched_off
from kairos.cli.options import AsJson, fill_options, with_options


class PlanFlow(msgspec.Struct, frozen=True, kw_only=True):
    flow: FlowFile
    inputs: Annotated[
        Path | None, typer.Option(help="The table of rows, to reckon with how many there are.")
    ] = None
    functions: FunctionsFile = None
    without: Without = None
    host: Annotated[
        Path | None,
        typer.Option(help="Devices that switch models, a .toml file: what would run where, when."),
    ] = None
    devices: Annotated[
        int | None, typer.Option(min=1, max=64, help="Override the number of devices in --host.")
    ] = None
    learnt: Annotated[
        Path | None,
        typer.Option(
            "--profile",
            help=r"Profile of the flow, from kairos profile \[FLOW's name with .profile.json].",
        ),
    ] = None
    engine_profile: Annotated[
        str | None,
        typer.Option(help="How long it would take on such engines: a profile's name, or a file."),
    ] = None
    instances: Annotated[
        int, typer.Option(min=1, max=1_000, help="Number of engines, for --engine-profile.")
    ] = 1
    as_primitives: Annotated[
        bool, typer.Option("--primitives", help="Show the engines' work for a row, part by part.")
    ] = False
    as_json: AsJson = False


@with_options
def plan(given: PlanFlow) -> None:
    """Explain what would be run: what is left out, merged and fetched, and how many calls are left.

    Nothing is asked of an engine.

    Examples:

    kairos plan summarise.yaml --inputs docs.parquet

    kairos plan debate.yaml --inputs docs.parquet --host host.toml --devices 2

    kairos plan reports.yaml --inputs docs.parquet --engine-profile a40-llama3-8b --instances 4
    """
    from kairos.workflows import ExplainOptions, explain_file, explain_primitives, plan_lines

    asked = fill_options(ExplainOptions, given, passes=switched_off(given.without or []))
    if given.as_primitives:
        typer.echo("\n".join(explain_primitives(asked)))
        return
    found = explain_file(asked)
    lines = [msgspec.json.encode(found).decode()] if given.as_json else plan_lines(found)
    typer.echo("\n".join(lines))
