"""What `kairos run`, `profile`, `plan` and `runs` say of the same options."""

from pathlib import Path
from typing import Annotated

import typer

from kairos.errors import SetupError

PASS_NAMES = ("prune", "cse", "cached", "order")

FlowFile = Annotated[
    Path, typer.Argument(metavar="FLOW", help="A .yaml file, or a .py file with one Flow in it.")
]
FunctionsFile = Annotated[
    Path | None,
    typer.Option("--functions", help="For YAML: the .py file with the Functions that it calls."),
]
Engines = Annotated[
    list[str] | None,
    typer.Option("--engine", help="An engine, as `kairos serve` takes it; repeat for each."),
]
Url = Annotated[
    str | None, typer.Option(help="Instead of engines: a Kairos that runs, http://HOST:PORT.")
]
ApiKeyEnv = Annotated[
    str | None,
    typer.Option(help="With --url: the environment variable that holds your API key."),
]
Model = Annotated[
    str | None,
    typer.Option(help=r"Of calls for which the flow names none \[the only one served]."),
]
Without = Annotated[
    list[str] | None,
    typer.Option(
        "--without",
        help=f"Switch a pass off: {', '.join(PASS_NAMES)}; repeat. Results stay the same.",
    ),
]
Directory = Annotated[
    Path | None,
    typer.Option(
        "--dir",
        envvar="KAIROS_RUNS",
        help=r"Where runs and the cache are kept, for you alone \[~/.local/state/kairos].",
    ),
]


def switched_off(without: list[str]) -> dict[str, bool]:
    """Of passes those that are off, as plans take it.

    Raises:
        SetupError: there is no such pass.
    """
    if unknown := [name for name in without if name not in PASS_NAMES]:
        raise SetupError(f"--without {unknown[0]}: there are {', '.join(PASS_NAMES)}")
    return dict.fromkeys(without, False)
