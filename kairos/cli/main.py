"""The `kairos` command."""

import sys
from typing import Annotated

import typer

from kairos import __version__, is_compiled
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
    process,
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
from kairos.interpreter import interpreter

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
        brain = "compiled" if is_compiled else "interpreted"
        typer.echo(f"kairos {__version__}, brain {brain}, {interpreter()}")
        raise typer.Exit


SERVE, LOOK, FLOWS, PLAN, CARE = (
    "Serve",
    "See what goes on, and what happened",
    "Declared workflows over tables",
    "Predict and plan",
    "Agents, keys, data",
)
for panel, commands in (
    (SERVE, (serve.serve, serve.balance, serve.orchestrate, demo.demo)),
    (SERVE, (process.process,)),
    (FLOWS, (run.run, plan.plan, profile.profile)),
    (LOOK, (health.health, top.top, look.explain, look.export, look.usage)),
    (LOOK, (happened.happened, gained.gained)),
    (PLAN, (simulate.simulate, replay.replay, calibrate.calibrate)),
    (PLAN, (plan_hardware, plan_autoscale)),
):
    for command in commands:
        app.command(rich_help_panel=panel)(command)
for name, more, panel in (
    ("agents", agents.app, CARE),
    ("keys", keys.app, CARE),
    ("runs", runs.app, FLOWS),
    ("traces", traces.app, CARE),
):
    app.add_typer(more, name=name, no_args_is_help=True, rich_help_panel=panel)


def main() -> None:
    try:
        app()
    except KairosError as error:
        sys.exit(f"kairos: {error}")
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
