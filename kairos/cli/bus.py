"""`kairos bus`."""

import os
from pathlib import Path
from typing import Annotated

import typer

from kairos.cli.options import BUS_HELP
from kairos.cli.running import cluster_named
from kairos.settings import load_settings

app = typer.Typer(help="Topics of Kafka: find records that make no sense.")


@app.command("check")
def bus_check(
    topic: Annotated[
        list[str] | None, typer.Option(help="Only this topic; repeat. Without: all five.")
    ] = None,
    last: Annotated[
        int | None, typer.Option(min=1, help="Records at the end of each partition; without: all.")
    ] = None,
    bus: Annotated[str | None, typer.Option(help=BUS_HELP)] = None,
    config_file: Annotated[
        Path | None, typer.Option("--config", help="TOML file with bus and \\[kafka] (TLS, SASL).")
    ] = None,
) -> None:
    """Name each record on Kairos's topics that makes no sense: where it is, and why.

    Nothing is changed. The exit status is 1 where there is such a record.

    Such records do nothing: every process leaves them out, and counts them.

    Example: kairos bus check --bus kafka://127.0.0.1:9092
    """
    from kairos.cli import bus_check as tool

    settings = load_settings(config_file, os.environ, {"bus": bus})
    cluster = cluster_named(settings, "name the bus: --bus kafka://HOST:PORT, or KAIROS_BUS")
    found = tool.check_bus(cluster, topic or tool.CHECKED, last, typer.echo)
    typer.echo(found.summary(), err=True)
    if found.wrong:
        raise typer.Exit(1)
