"""The `kairos` command: reads settings, puts things together, starts them."""

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Annotated

import typer
import uvloop

from kairos import __version__, config
from kairos.errors import SetupError

app = typer.Typer(
    help="Kairos stands between multi-agent LLM applications and a pool of vLLM instances: it "
    "queues their calls, decides their order, and chooses an instance for each.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)


@app.callback(invoke_without_command=True)
def _version(
    version: Annotated[bool, typer.Option("--version", help="Print the version and stop.")] = False,
) -> None:
    if version:
        typer.echo(f"kairos {__version__}")
        raise typer.Exit


@app.command()
def serve(
    engine: Annotated[
        list[str] | None,
        typer.Option(
            help="An OpenAI-compatible upstream: URL[,max_num_seqs=N][,kv_tokens=N]; repeat for "
            "each. The limits are for engines that do not tell theirs."
        ),
    ] = None,
    policy: Annotated[str | None, typer.Option(help="Order of the queue: fcfs.")] = None,
    placement: Annotated[
        str | None, typer.Option(help="Choice of the instance: least-kv, round-robin.")
    ] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on [127.0.0.1].")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on [8000]; 0: any.")] = None,
    admin_port: Annotated[
        int | None, typer.Option(help="Port of the operators' routes, on loopback [8001].")
    ] = None,
    log: Annotated[
        Path | None, typer.Option(help="Keep facts and decisions (no bodies) in this directory.")
    ] = None,
    config_file: Annotated[
        Path | None, typer.Option("--config", help="TOML file with any of these, and API keys.")
    ] = None,
) -> None:
    """Serve OpenAI's API in front of one or more engines.

    Every option can also stand in the file, or in the environment as KAIROS_PORT and so on. The
    command line wins over the environment, and that over the file.

    Example: kairos serve --engine http://gpu1:8000 --engine http://gpu2:8000
    """
    arguments = {
        "policy": policy,
        "placement": placement,
        "host": host,
        "port": port,
        "admin_port": admin_port,
        "log_dir": str(log) if log else None,
        "engine": [config.parse_engine(text) for text in engine] if engine else None,
    }
    settings = config.load(config_file, os.environ, arguments)
    if not settings.engine:
        raise SetupError("name at least one engine: kairos serve --engine http://HOST:PORT")
    _run(_serve(settings))


async def _serve(settings: config.Settings) -> None:
    from kairos.live.service import running

    stop = asyncio.Event()
    for signal_number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(signal_number, stop.set)
    async with running(settings) as service:
        typer.echo(f"kairos: serving on {service.url}/v1, operators' routes on {service.admin_url}")
        if not config.is_loopback(settings.host) and not settings.key:
            typer.echo("kairos: no API keys are configured, so anyone who reaches it may call")
        await stop.wait()
        typer.echo("kairos: stopping; running calls may finish")


def _run(main: object) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main)  # type: ignore[arg-type]


def main() -> None:
    try:
        app()
    except SetupError as error:
        sys.exit(f"kairos: {error}")


if __name__ == "__main__":
    main()
