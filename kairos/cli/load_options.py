"""Options for the load of `kairos replay` and `kairos simulate`, which share them."""

from pathlib import Path
from typing import Annotated

import typer

_WORKFLOWS = typer.Option(
    help="A workflow file (traces/README.md), or an Azure trace, with a workflow of one call for "
    "each row; plain or gzip."
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
        r"file of an Azure trace \[the file's own if it is a trace or from kairos export; "
        "else azure-conv]."
    ),
]
Count = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Workflows to submit; when they run out they repeat "
        r"\[all of the file].",
    ),
]
MaxContext = Annotated[
    int | None,
    typer.Option(
        min=2,
        help="Shorten prompts in proportion, in applications with a call (prompt plus completion) "
        "of more than this many tokens.",
    ),
]
