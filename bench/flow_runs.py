"""`python -m bench.flow_runs`: what a run of a declared workflow costs, with all that is live but
the engine: rows read from a file, calls handed over, the journal and the cache on disk, the table
that comes out.

In a process of its own, whose largest memory counts. A row has two calls, one of which a hundred
rows share; an engine that answers at once stands in for HTTP and model.

`--quick`: few rows, to see that it works. Adds its figures to bench/results.json, unless quick;
takes twenty minutes.
"""

import argparse
import asyncio
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import msgspec
from rich.console import Console

from bench import report, rows
from bench.flows import questions, shared
from bench.memory import peak_mib
from bench.report import Figure
from kairos.declared_plan import PlannedWork
from kairos.live.llm.http_llm import HttpLLM
from kairos.live.runs.run_store import RunRecord, RunStore
from kairos.live.runs.service import FlowJob, FlowRun, RunPool
from kairos.live.runs.tables import open_table

ROWS, QUICK_ROWS = 1_000_000, 2_000
CAPACITY = 256
COST = "CPU time of a whole run for a row of two calls"
MEMORY = "largest memory of a process that runs {:,} rows"
TARGET_MIB = 300


class AnsweringLLM:
    """Answers at once."""

    def __init__(self) -> None:
        self.calls = 0

    async def complete(self, body: dict[str, Any], headers: Mapping[str, str]) -> dict[str, Any]:
        assert body["messages"]
        assert headers
        self.calls += 1
        text = f"answer {self.calls}"
        usage = {"prompt_tokens": 20, "completion_tokens": 3}
        return {"choices": [{"message": {"content": text}}], "usage": usage}

    async def declare_plan(self, app: str, work: PlannedWork) -> None:
        pass


async def _run(directory: Path, count: int) -> None:
    table = directory / "rows.jsonl"
    with table.open("wb") as file:
        for row in questions(count):
            file.write(msgspec.json.encode(row) + b"\n")
    declared = shared()
    store = RunStore(directory / "kairos")
    record = RunRecord(
        id="bench", flow="bench", out=str(directory / "out.jsonl"), created_at=0, changed_at=0
    )
    pool = RunPool(cast(HttpLLM, AnsweringLLM()), lambda: CAPACITY, lambda _: None)
    job = FlowJob(declared.compile(), declared.functions, open_table(table), store.cache)
    run = FlowRun(store.create(record), record, lambda _: None)
    record = await run.to_the_end(job, pool)
    assert record.figures["written"] == count, record.figures


def _child(count: int) -> None:
    with TemporaryDirectory(dir=Path.cwd()) as directory:
        began = time.process_time()
        asyncio.run(_run(Path(directory), count))
        cpu_us = (time.process_time() - began) / count * 1e6
    print(cpu_us, peak_mib())


def measure(console: Console, *, quick: bool) -> list[Figure]:
    count = QUICK_ROWS if quick else ROWS
    console.print(f"{count:,} rows")
    command = [sys.executable, "-m", "bench.flow_runs", "--child", str(count)]
    out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    cpu_us, memory_mib = (report.spread([float(each)]) for each in out.split())
    return [
        Figure(name=COST, value=cpu_us.median, unit="us", target=None, detail={"kairos": cpu_us}),
        Figure(
            name=MEMORY.format(count),
            value=memory_mib.median,
            unit="MiB",
            target=TARGET_MIB,
            detail={"kairos": memory_mib},
        ),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.flow_runs", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few rows")
    parser.add_argument("--child", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        _child(arguments.child)
        return
    console = report.console()
    found = measure(console, quick=arguments.quick)
    if not arguments.quick:
        rows.keep(found, "flow_runs")
    report.show(found, console, {"kairos": "Kairos"})


if __name__ == "__main__":
    main()
