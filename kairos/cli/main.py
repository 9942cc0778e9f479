"""The `kairos` command."""

import gc
import sys
from typing import Annotated

import typer

from kairos import __version__, is_compiled
from kairos.cli.commands import Commands
from kairos.errors import KairosError

_YOUNG = 50_000  # objects between two looks for cycles; services then choose for themselves
app = typer.Typer(
    cls=Commands,
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
        from kairos.interpreter import interpreter

        brain = "compiled" if is_compiled else "interpreted"
        typer.echo(f"kairos {__version__}, brain {brain}, {interpreter()}")
        raise typer.Exit


def main() -> None:
    # Modules leave no cycles behind: with Python's 700 a tenth of a start goes into looking.
    gc.set_threshold(_YOUNG, *gc.get_threshold()[1:])
    try:
        app()
    except KairosError as error:
        sys.exit(f"kairos: {error}")
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
