"""`kairos calibrate`: measures engines, and writes the profile that a simulation needs of them."""

import json
import os
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import typer

from kairos.cli.options import fill_options, with_options
from kairos.cli.running import run
from kairos.core import SetupError
from kairos.settings import default_api_key


class Calibrate(msgspec.Struct, frozen=True, kw_only=True):
    engine: Annotated[
        list[str],
        typer.Option(
            help="The engine itself, not a Kairos: http://HOST:PORT. Repeat for engines that share "
            "a machine: they are measured at the same time, and get one profile."
        ),
    ]
    output: Annotated[Path | None, typer.Option(help=r"The file to write \[NAME.toml].")] = None
    name: Annotated[str | None, typer.Option(help=r"Name of the profile \[the model's].")] = None
    model: Annotated[str | None, typer.Option(help=r"Model to call \[the engine's first].")] = None
    max_num_seqs: Annotated[int, typer.Option(min=1, max=100_000, help="The engine's setting.")] = (
        256
    )
    max_num_batched_tokens: Annotated[
        int, typer.Option(min=1, max=10_000_000, help="The engine's setting.")
    ] = 2048
    scheduling: Annotated[
        Literal["fcfs", "priority"], typer.Option(help="The engine's setting.")
    ] = "fcfs"
    kv_tokens: Annotated[
        int | None, typer.Option(min=1, help="Tokens that it holds, where it does not tell.")
    ] = None
    max_model_len: Annotated[
        int | None, typer.Option(min=64, help="The context it takes, where it does not tell.")
    ] = None
    quick: Annotated[bool, typer.Option("--quick", help="Measure one round instead of three.")] = (
        False
    )
    unstreamed: Annotated[
        bool,
        typer.Option(
            "--unstreamed",
            help="Use answers that are not streamed, as flows and batches do. On an engine that "
            "shares one core with its server, each streamed token costs time.",
        ),
    ] = False
    api_key_env: Annotated[
        str | None, typer.Option(help="The environment variable that holds the engines' key.")
    ] = None
    as_json: Annotated[
        bool, typer.Option("--json", help="Print profile and fit, and nothing else.")
    ] = False


@with_options
def calibrate(given: Calibrate) -> None:
    """Measure what an engine's steps cost, and write a profile for `kairos simulate`.

    It takes some minutes, during which nobody else may use the engine. The coefficients are fitted
    to the times at which a client receives tokens; the quality of the fit is printed, and stored in
    the file.

    Example: kairos calibrate --engine http://gpu1:8000 --name my-gpu --quick
    """
    from kairos.host import atomic_write
    from kairos.simulate import CalibrationOptions, calibrate_engines

    asked = fill_options(
        CalibrationOptions,
        given,
        engines=given.engine,
        api_key=default_api_key(given.api_key_env, os.environ),
        streamed=not given.unstreamed,
    )
    asked.check()
    _check_writable(given.output)
    found = run(calibrate_engines(asked, lambda line: typer.echo(f"kairos: {line}", err=True)))
    output = given.output or Path(f"{found.profile.name}.toml")
    with atomic_write(output) as file:
        file.write(found.to_toml().encode())
    if given.as_json:
        typer.echo(json.dumps(msgspec.to_builtins(found)))
        return
    typer.echo(found.fit.table())
    typer.echo(f"kairos: wrote {output}")
    if found.fit.bad:
        typer.echo(
            "kairos: the model explains this engine badly (half of the observations are off by "
            f"more than {found.fit.overall.median:.0%}): was the machine busy with something else?",
            err=True,
        )


def _check_writable(output: Path | None) -> None:
    """Check the output before minutes are spent on measuring."""
    directory = Path() if output is None else output.parent
    if output is not None and output.is_dir():
        raise SetupError(f"cannot write {output}: it is a directory; name a file")
    if not (directory.is_dir() and os.access(directory, os.W_OK)):
        raise SetupError(f"cannot write in {directory}: name a file elsewhere with --output")
