"""Runs every flow of this folder over real data, on two small real models: `make flow-demo`.

The model is so small that its answers are seldom right: what there is to see is what is run.
"""

import argparse
import asyncio
import os
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
from rich.console import Console

from examples import data
from kairos.cli import serve_engines
from kairos.cli.demos.engines import start_engines
from kairos.workflows import FlowRuns, load_flow, show_end
from kairos.workflows.run.tables import open_table

HERE = Path(__file__).parent
FLOWS = {  # and the table that each goes over
    "summarise_and_judge.yaml": "report_questions.jsonl",
    "extract_and_check.yaml": "reports.jsonl",
    "classify_and_answer.yaml": "questions.jsonl",
    "map_reduce.yaml": "reports.jsonl",
    "debate.py": "misconceptions.jsonl",
}
ENGINES = 2
# Calls at once, and tokens for all of them together: a report has up to two thousand.
LLAMA = ("--threads", "1", "--slots", "4", "--context", "16384")
CLIP = 400  # characters of a value that are shown


async def demo(out: Path, source: Path | None, rows: int) -> None:
    console = Console()
    data.write(out, source, rows)
    async with start_engines("llama", ENGINES, options=LLAMA, on_progress=console.print) as urls:
        for flow, table in FLOWS.items():
            console.rule(f"{flow} over {table}")
            await run(console, HERE / flow, out / table, tuple(urls))


async def run(console: Console, flow: Path, table: Path, urls: tuple[str, ...]) -> None:
    """One flow, to its end, and the first row that came out of it."""
    functions = HERE / "functions.py" if flow.suffix != ".py" else None
    loaded = load_flow(flow, functions)
    runs, out = FlowRuns(table.parent / "runs"), table.parent / f"{flow.stem}.jsonl"
    task = runs.prepare_program(loaded, table, out, engines=urls)
    show_end(console, await runs.drive(task, serve_engines, console.print))
    for row in open_table(out).rows():
        for name, value in (row.values or {}).items():
            text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
            console.print(f"[dim]{name}:[/] ", end="")
            console.print(text[:CLIP].strip(), markup=False, highlight=False)
        break


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="keep tables there; else they are removed")
    parser.add_argument("--from", dest="source", type=Path, default=os.environ.get("KAIROS_DATA"))
    parser.add_argument("--rows", type=int, default=8, help="of each table")
    options = parser.parse_args()
    source = Path(options.source) if options.source else None
    with TemporaryDirectory() as scratch:
        out = options.out or Path(scratch)
        asyncio.run(demo(out, source, options.rows))


if __name__ == "__main__":
    main()
