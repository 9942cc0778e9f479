"""The options by which `kairos replay` and `kairos simulate` are told what arrives: the same."""

from pathlib import Path
from typing import Annotated

import typer

_WORKFLOWS = typer.Option(
    help="A workflow file (traces/README.md), or an Azure trace, of which each row is a workflow "
    "of one call; plain or gzip."
)
Workflows = Annotated[Path, _WORKFLOWS]
WorkflowsIfAny = Annotated[Path | None, _WORKFLOWS]
Rate = Annotated[
    float | None, typer.Option(help=r"Workflows per second, in the long run \[1; the file's own].")
]
Arrivals = Annotated[
    str | None,
    typer.Option(
        help="azure-conv or azure-code (as bursty as these traces), poisson, gamma:CV, or the "
        r"file of an Azure trace \[those of the file, where it is a trace, or of kairos export; "
        "else azure-conv]."
    ),
]
Count = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Workflows to submit; those of the file come again where they run out "
        r"\[all of the file].",
    ),
]
MaxContext = Annotated[
    int | None,
    typer.Option(
        min=2,
        help="Shorten prompts in proportion, in applications where some prompt and completion is "
        "longer than so many tokens together.",
    ),
]
