"""`python -m bench.flow_runs`: what a run of a declared workflow costs, with all that is live but
the engine: rows read from a file, calls handed over, the journal and the cache on disk, the table
that comes out.

In a process of its own, whose largest memory counts. A row has two calls, one of which a hundred
rows share; an engine that answers at once stands in for HTTP and model.

`--copies`: only the cost of giving functions copies of their arguments, and of taking copies of
their results. A row has one call of a function; the CPU time of copies is taken around them, in
the thread that makes them, as a share of all else that the run's process does.

`--quick`: few rows, to see that it works. Adds its figures to bench/results.json, unless quick;
takes twenty minutes, five of them for copies.
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
from kairos import flow
from kairos.core import PlannedWork
from kairos.proxy import HttpLLM, Patience
from kairos.workflows import RunPool, RunRecord
from kairos.workflows.compile.values import copied
from kairos.workflows.declare.functions import RegisteredFunction, given
from kairos.workflows.run.flow_run import FlowJob, FlowRun
from kairos.workflows.run.run_store import RunStore
from kairos.workflows.run.tables import open_table

ROWS, QUICK_ROWS = 1_000_000, 2_000
CAPACITY = 256
COST = "CPU time of a whole run for a row of two calls"
MEMORY = "largest memory of a process that runs {:,} rows"
TARGET_MIB = 300
COPIES = "CPU time that copies for functions add to a run, rows of {}"
# Of a row: its name, how many objects its list has, and the most that copies may add.
SIZES = (("0.6 KB", 8, 0.05), ("20 KB", 300, 0.05), ("1 MB", 12_500, 0.20))
COPIED_BYTES, QUICK_COPIED_BYTES = 120_000_000, 2_000_000  # of rows together
MOST_COPIED_ROWS = 30_000
ROUNDS, QUICK_ROUNDS = 3, 1


class AnsweringLLM:
    """Answers at once."""

    def __init__(self) -> None:
        self.calls, self.patience = 0, Patience()

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


def clock_ns() -> int:
    """Return what it takes to ask a thread's clock, a system call."""
    began_ns = time.thread_time_ns()
    for _ in range(10_000):
        time.thread_time_ns()
    return (time.thread_time_ns() - began_ns) // 10_000


CLOCK_NS = clock_ns()


class Timed(RegisteredFunction, frozen=True):
    """A function whose copies are timed. `spent_ns`: one number."""

    spent_ns: list[int] = msgspec.field(default_factory=lambda: [0])

    def call(self, arguments: Mapping[str, object]) -> object:
        began_ns = time.thread_time_ns()
        own = copied(arguments)
        called_ns = time.thread_time_ns()
        value = self.function(**own)
        answered_ns = time.thread_time_ns()
        value = given(value)
        ended_ns = time.thread_time_ns()
        self.spent_ns[0] += called_ns - began_ns + ended_ns - answered_ns - 2 * CLOCK_NS
        return value


def total(items: list[dict[str, Any]], rate: float) -> dict[str, float]:
    """Return what a function of a table pipeline computes of a row."""
    return {"total": rate * sum(each["price"] * each["count"] for each in items)}


def _item(number: int) -> dict[str, Any]:
    tags = [f"tag {number % 7}", f"tag {number % 5}"]
    return {"id": number, "name": f"item {number}", "price": 1.5, "count": number % 9, "tags": tags}


async def _run_functions(directory: Path, count: int, items: int) -> None:
    table = directory / "rows.jsonl"
    with table.open("wb") as file:
        for number in range(count):
            listed = [_item(number + each) for each in range(items)]
            file.write(msgspec.json.encode({"items": listed, "rate": number}) + b"\n")
    declared = flow.Flow("copies")
    row = declared.input("row", columns=["items", "rate"])
    declared.functions.register(total, purity="effect")
    called = declared.call("called", "total", purity="effect", items=row["items"], rate=row["rate"])
    declared.output("total", called)
    known = declared.functions[total.__name__]
    timed = Timed(known.function, known.purity, known.version)
    declared.functions._by_name[total.__name__] = timed
    store = RunStore(directory / "kairos")
    out = str(directory / "out.jsonl")
    record = RunRecord(id="bench", flow="copies", out=out, created_at=0, changed_at=0)
    pool = RunPool(cast(HttpLLM, AnsweringLLM()), lambda: CAPACITY, lambda _: None)
    job = FlowJob(declared.compile(), declared.functions, open_table(table), None)
    began = time.process_time()
    run = FlowRun(store.create(record), record, lambda _: None)
    record = await run.to_the_end(job, pool)
    assert record.figures["written"] == count, record.figures
    took_us, copies_us = (time.process_time() - began) * 1e6, timed.spent_ns[0] / 1e3
    print(100 * copies_us / (took_us - copies_us), took_us / count)


def _copies_child(count: int, items: int) -> None:
    with TemporaryDirectory(dir=Path.cwd()) as directory:
        asyncio.run(_run_functions(Path(directory), count, items))


def measure_copies(console: Console, *, quick: bool) -> list[Figure]:
    found = []
    for name, items, most in SIZES:
        size = len(msgspec.json.encode([_item(each) for each in range(items)]))
        together = QUICK_COPIED_BYTES if quick else COPIED_BYTES
        count = min(MOST_COPIED_ROWS, max(2, together // size))
        console.print(f"{count:,} rows of {size:,} bytes")
        rounds = QUICK_ROUNDS if quick else ROUNDS
        measured = [_share(count, items) for _ in range(rounds)]
        share = report.spread([each for each, _ in measured])
        figure = Figure(
            name=COPIES.format(name),
            value=share.median,
            unit="%",
            target=100 * most,
            detail={"kairos": share},
        )
        found.append(figure)
        console.print(
            f"{share.median} % of {report.spread([us for _, us in measured]).median:,.0f} us a row"
        )
    return found


def _share(count: int, items: int) -> tuple[float, float]:
    """Return what copies add, in percent, and the CPU time of a row, in us."""
    words = [sys.executable, "-m", "bench.flow_runs", "--copies-child", str(count), str(items)]
    out = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    share, cost_us = map(float, out.split())
    return share, cost_us


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
    parser.add_argument("--copies", action="store_true", help="only what copies for functions cost")
    parser.add_argument("--child", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--copies-child", type=int, nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.copies_child:
        _copies_child(*arguments.copies_child)
        return
    if arguments.child:
        _child(arguments.child)
        return
    console = report.console()
    found = [] if arguments.copies else measure(console, quick=arguments.quick)
    found += measure_copies(console, quick=arguments.quick)
    if not (arguments.quick or arguments.copies):
        rows.keep(found, "flow_runs")
    report.show(found, console, {"kairos": "Kairos"})


if __name__ == "__main__":
    main()
