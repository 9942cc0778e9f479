"""`kairos bus`."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kairos.cli.options import BUS_HELP
from kairos.cli.running import cluster_named
from kairos.settings import load_settings

if TYPE_CHECKING:
    from kairos.cluster import KafkaCluster

app = typer.Typer(help="Topics of Kafka: find records that make no sense, and pass over one.")

_Bus = Annotated[str | None, typer.Option(help=BUS_HELP)]
_Config = Annotated[
    Path | None, typer.Option("--config", help="TOML file with bus and \\[kafka] (TLS, SASL).")
]


@app.command("check")
def bus_check(
    topic: Annotated[
        list[str] | None, typer.Option(help="Only this topic; repeat. Without: all five.")
    ] = None,
    last: Annotated[
        int | None, typer.Option(min=1, help="Records at the end of each partition; without: all.")
    ] = None,
    bus: _Bus = None,
    config_file: _Config = None,
) -> None:
    """Name each record on Kairos's topics that makes no sense: where it is, and why.

    Nothing is changed. The exit status is 1 where there is such a record.

    Such records do nothing: every process leaves them out, and counts them.

    Example: kairos bus check --bus kafka://127.0.0.1:9092
    """
    from kairos.cli import bus_check as tool

    found = tool.check_bus(_cluster(bus, config_file), topic or tool.CHECKED, last, typer.echo)
    typer.echo(found.summary(), err=True)
    if found.wrong:
        raise typer.Exit(1)


@app.command("skip")
def bus_skip(
    where: Annotated[str, typer.Argument(help="TOPIC/PARTITION@OFFSET, as `check` says it.")],
    group: Annotated[
        str, typer.Argument(help="The consumer group, such as kairos.balancer.default.")
    ],
    bus: _Bus = None,
    config_file: _Config = None,
) -> None:
    """Have a group of processes go on behind a record, should one end them in spite of all.

    Stop them first. What comes before the record, and was not done yet, is left.

    Example: kairos bus skip kairos.requests/0@4711 kairos.balancer.default
    """
    from kairos.cli import bus_check as tool

    typer.echo(tool.skip_record(_cluster(bus, config_file), where, group))


def _cluster(bus: str | None, config_file: Path | None) -> "KafkaCluster":
    settings = load_settings(config_file, os.environ, {"bus": bus})
    return cluster_named(settings, "name the bus: --bus kafka://HOST:PORT, or KAIROS_BUS")
