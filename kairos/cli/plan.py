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
    as_json: Annotated[bool, typer.Option("--json", help="The same, for a program.")] = False,
) -> None:
    """Explain what would be run: what is left out, merged and fetched, and how many calls are left.

    Nothing is asked of an engine.

    Example: kairos plan summarise.yaml --inputs docs.parquet
    """
    import msgspec

    from kairos.live.runs.tables import open_table
    from kairos.plan.explain import explain, lines
    from kairos.plan.pipeline import Passes, compile_plan
    from kairos.plan.prediction import predict
    from kairos.tools.flow_file import check_columns, load_flow

    loaded = load_flow(flow, functions)
    made = compile_plan(loaded.declaration, Passes(**switched_off(without or [])))
    loaded.functions.check(made)
    prediction = None
    if inputs is not None:
        table = open_table(inputs)
        check_columns(made, table)
        readable = (row.values for row in table.rows() if row.values is not None)
        prediction = predict(made, readable)
    explained = explain(made, prediction)
    if as_json:
        typer.echo(msgspec.json.encode(explained).decode())
    else:
        typer.echo("\n".join(lines(explained)))
