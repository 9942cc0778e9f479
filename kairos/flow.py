"""The door of declared workflows: operators over the rows of a table, in Python.

    from kairos import flow

    f = flow.Flow("reports")
    doc = f.input("doc")
    summary = f.llm("summarise", "Summarise:\\n{{ doc.text }}", doc=doc, max_tokens=200)
    f.output("summary", summary)

Nothing runs until the flow is run, with `kairos run` or `flow.run_flow`. Programs import from here;
what they import is in `kairos/workflows/`.
"""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kairos.workflows import Flow, Functions, Operand, Passes, from_openai_batch, load_flow

if TYPE_CHECKING:
    from kairos.workflows import LoadedFlow, RunRecord, Timeline

__all__ = ["Flow", "Functions", "Operand", "Passes", "from_openai_batch", "load_flow", "run_flow"]


def run_flow(
    flow: "Flow | LoadedFlow",
    table: object,
    out: Path | str,
    *,
    engines: Sequence[str] = (),
    url: str | None = None,
    api_key_env: str | None = None,
    model: str | None = None,
    root: Path | None = None,
    resume: str | None = None,
    on_note: Callable[[str], None] = lambda _: None,
    timeline: "Timeline | None" = None,
    **fields: Any,
) -> "RunRecord":
    """Run a flow that a program declares over a table that it holds, to its end.

    Args:
        flow: The flow.
        table: The path of a file, a list of dicts, or any object with Arrow's C stream (pandas,
            polars, pyarrow, datasets).
        out: The file to write; its suffix determines the format.
        engines: As for `kairos run`.
        url: As for `kairos run`.
        api_key_env: As for `kairos run`.
        model: As for `kairos run`.
        root: The directory of runs; None: the default of `kairos run`.
        resume: The id of a run of this flow over this table to resume; with `results`, also one
            of another host.
        on_note: Receives messages for the user.
        timeline: Receives begins and ends of the flow's calls.
        fields: Other fields of `RunRecord`, such as `revision`, `concurrency`, `results`.

    Raises:
        SetupError: It cannot run.
    """
    from kairos.cli import serve_engines
    from kairos.workflows import FlowRuns

    runs = FlowRuns(root)
    task = runs.prepare_program(
        flow,
        table,
        out,
        resume,
        engines=tuple(engines),
        url=url,
        api_key_env=api_key_env,
        model=model,
        **fields,
    )
    return asyncio.run(runs.drive(task, serve_engines, on_note, timeline=timeline))
