"""`kairos plan`: what a declared workflow would do."""

from pathlib import Path
from typing import Annotated

import typer

from kairos.cli.flow_options import FlowFile, FunctionsFile, Without, switched_off


def plan(
    flow: FlowFile,
    inputs: Annotated[
        Path | None, typer.Option(help="The table of rows, to reckon with how many there are.")
    ] = None,
    functions: FunctionsFile = None,
    without: Without = None,
    host: Annotated[
        Path | None,
        typer.Option(help="Devices that switch models, a .toml file: what would run where, when."),
    ] = None,
    devices: Annotated[
        int | None, typer.Option(min=1, max=64, help="With --host: so many, whatever it says.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The same, for a program.")] = False,
) -> None:
    """Explain what would be run: what is left out, merged and fetched, and how many calls are left.

    Nothing is asked of an engine.

    Examples:

    kairos plan summarise.yaml --inputs docs.parquet

    kairos plan debate.yaml --inputs docs.parquet --host host.toml --devices 2
    """
    import msgspec

    from kairos.live.runs.tables import open_table
    from kairos.plan.explain import explain, lines
    from kairos.plan.pipeline import Passes, compile_plan
    from kairos.plan.prediction import predict
    from kairos.tools.flow_file import check_columns, load_flow
    from kairos.tools.flow_placement import flow_placement

    loaded = load_flow(flow, functions)
    made = compile_plan(loaded.declaration, Passes(**switched_off(without or [])))
    loaded.functions.check(made)
    prediction = None
    if inputs is not None:
        table = open_table(inputs)
        check_columns(made, table)
        readable = (row.values for row in table.rows() if row.values is not None)
        prediction = predict(made, readable)
    placement = flow_placement(made, prediction, host, devices) if host is not None else None
    explained = explain(made, prediction, placement)
    if as_json:
        typer.echo(msgspec.json.encode(explained).decode())
    else:
        typer.echo("\n".join(lines(explained)))
