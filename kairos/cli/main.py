"""The `kairos` command."""

import sys
from typing import Annotated

import typer

from kairos import __version__
from kairos.cli import (
    agents,
    calibrate,
    demo,
    gained,
    happened,
    health,
    keys,
    look,
    plan,
    profile,
    replay,
    run,
    runs,
    serve,
    simulate,
    top,
    traces,
)
from kairos.cli.plan_autoscale import plan_autoscale
from kairos.cli.plan_hardware import plan_hardware
from kairos.errors import KairosError

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


for command in (
    *(serve.serve, serve.balance, serve.orchestrate, demo.demo),
    *(run.run, plan.plan, profile.profile),
    *(health.health, top.top, look.explain, look.export, look.usage),
    *(happened.happened, gained.gained),
    *(simulate.simulate, replay.replay, calibrate.calibrate),
):
    app.command()(command)
app.command()(plan_hardware)
app.command()(plan_autoscale)
app.add_typer(agents.app, name="agents", no_args_is_help=True)
app.add_typer(keys.app, name="keys", no_args_is_help=True)
app.add_typer(runs.app, name="runs", no_args_is_help=True)
app.add_typer(traces.app, name="traces", no_args_is_help=True)


def main() -> None:
    try:
        app()
    except KairosError as error:
        sys.exit(f"kairos: {error}")
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
