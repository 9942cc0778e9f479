"""`kairos traces`."""

import json
from pathlib import Path
from typing import Annotated

import typer

from kairos.cli.options import outline

app = typer.Typer(help="Real arrivals and inputs: what there is, and fetching it.")


@app.command("list")
def traces_list() -> None:
    """List the data sets that can be fetched."""
    from kairos.simulate import data_sets

    for name, data_set in data_sets().items():
        typer.echo(f"{name:24} {data_set.rows:7,} rows  {data_set.licence}")


@app.command("fetch")
def traces_fetch(
    name: str,
    source: Annotated[
        Path | None,
        typer.Option("--from", help="A local copy: the file, plain or gzip, or its directory."),
    ] = None,
) -> None:
    """Fetch a data set from its pinned URL, and check its size and SHA-256."""
    from kairos.simulate import fetch_data_set

    typer.echo(fetch_data_set(name, source))


@app.command("describe")
def traces_describe(
    path: Path,
    as_json: Annotated[bool, typer.Option("--json", help="The same figures as JSON.")] = False,
) -> None:
    """Describe a workflow file (calls and tokens per app) or an Azure trace (arrivals)."""
    import msgspec

    from kairos.simulate import describe_file

    figures = msgspec.to_builtins(describe_file(path))
    typer.echo(json.dumps(figures) if as_json else outline(figures))


@app.command("generate")
def traces_generate(
    app: Annotated[
        str, typer.Argument(help="qa, rg or cg, or the file of a model of your own (.toml).")
    ],
    path: Annotated[Path, typer.Argument(help="The workflow file to write; gzip if it ends so.")],
    count: Annotated[int, typer.Option(min=1, max=1_000_000, help="Workflows.")] = 50,
    seed: Annotated[int, typer.Option(help="Another one, other workflows.")] = 1,
) -> None:
    """Write a workflow file that a generative model of an application makes.

    The same arguments give the same file.
    """
    from kairos.simulate import write_generated

    write_generated(path, app, count, seed)
