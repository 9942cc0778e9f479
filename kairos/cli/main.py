"""The `kairos` command."""

import gc
import sys
from typing import Annotated

import typer

from kairos import __version__, is_compiled
from kairos.cli.commands import Commands
from kairos.core import KairosError, SetupError

# Commands (in place of an option) and options that there were, and what to use instead.
_RESULTS = (
    "runs are no longer kept on Kafka; --results postgresql://[USER@]HOST[:PORT]/NAME keeps what a "
    "run has found out where other hosts can go on with it"
)
_PROCESSORS = (
    "processors are no longer services of their own; --embedder, --reranker and --collections name "
    "what flows need, on any host, and `kairos run --on ray://HEAD:PORT` makes each an actor for "
    "all partitions of a run"
)
_REMOVED = {
    ("process", "process"): _PROCESSORS,
    ("run", "--processor"): _PROCESSORS,
    ("runs", "--processor"): _PROCESSORS,
    ("profile", "--processor"): _PROCESSORS,
    ("run", "--bus"): _RESULTS,
    ("run", "--config"): _RESULTS,
    ("run", "--values"): _RESULTS + ", values of any size among it",
    ("runs", "--bus"): _RESULTS,
    ("runs", "--config"): _RESULTS,
    ("runs", "--values"): _RESULTS + ", values of any size among it",
    ("runs", "--stand-by"): _RESULTS
    + "; resume it there, and it is taken from the host that has it",
    ("run", "--gantt"): "--log DIR keeps what happened, and `kairos export --log DIR --perfetto "
    "trace.json` writes it for ui.perfetto.dev",
    ("plan", "--cost"): "--engine-profile says how long it takes; the costs of the papers are in "
    "experiments/paper_costs.py",
    ("plan-hardware", "--picture"): "--json has the same figures, for any tool that draws",
}
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
        from kairos.host import describe_interpreter

        brain = "compiled" if is_compiled else "interpreted"
        typer.echo(f"kairos {__version__}, brain {brain}, {describe_interpreter()}")
        raise typer.Exit


def _check_removed(words: list[str]) -> None:
    """Check for options that were removed. Raises SetupError: One is given."""
    names = {word.split("=", 1)[0] for word in words}
    for (command, option), instead in _REMOVED.items():
        if words[:1] == [command] and option in names:
            of = "kairos" if option == command else command
            raise SetupError(f"{of} has no {option} any more: {instead}")


def main() -> None:
    # Modules leave no cycles behind: with Python's 700 a tenth of a start goes into looking.
    gc.set_threshold(_YOUNG, *gc.get_threshold()[1:])
    try:
        _check_removed(sys.argv[1:])
        app()
    except KairosError as error:
        sys.exit(f"kairos: {error}")
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
