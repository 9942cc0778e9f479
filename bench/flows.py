"""`python -m bench.flows`: what declared workflows cost: planning, the executor's CPU time for a
call, and its memory for a million rows.

On one core, without engines: answers come back at once, in the order in which calls were issued,
so only the executor's own work is timed. The flow is six calls a row over documents of 2 KB: a
summary that ten rows share, four roles that judge it, and a verdict with a schema. Planned are 88
operators with a template each, as a trading workflow of analysts, debaters and managers has. The
million rows go through a flow of two calls, one of which a hundred rows share, in a process of its
own; what counts is how much its memory grows over them.

`--quick`: few rows, to see that it works. Adds its figures to bench/results.json, unless quick;
takes eight minutes.
"""

import argparse
import gc
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator

from rich.console import Console

from bench import report, rows
from bench.memory import peak_mib
from bench.report import Figure
from kairos import flow
from kairos.workflows import FlowLimits, IssueCall, Plan
from kairos.workflows.execute.commands import EndRun, FetchCached, FlowCommand, ReadRows, WriteRow
from kairos.workflows.execute.executor import Executor
from kairos.workflows.execute.facts import (
    CacheAnswered,
    CallAnswered,
    FlowFact,
    InputEnded,
    RowRead,
)

ROUNDS, QUICK_ROUNDS = 3, 1
ROWS, QUICK_ROWS = 5_000, 200
MANY_ROWS, QUICK_MANY_ROWS = 1_000_000, 5_000
OPERATORS = 88
CAPACITY = 64
ROLES = ("bull", "bear", "risk", "law")
WORDS = "growth of revenue against cost of capital in a year of change "

CALL = "CPU time of the executor for a call, six operators a row"
PLAN = f"planning {OPERATORS} operators"
MEMORY = "memory that a run over {:,} rows takes beyond its first thousand"
TARGETS = {CALL: 150, PLAN: 230, MEMORY: 300}


def shown() -> list[str]:
    """The figures that the documentation has."""
    return [CALL, PLAN, MEMORY.format(MANY_ROWS)]


def reports() -> flow.Flow:
    f = flow.Flow("reports", max_tokens=64, on_cut="keep")
    row = f.input("row")
    summary = f.llm("summary", "Sum up:\n{{ row.text }}", row=row)
    schema = {"type": "object", "properties": {"score": {"type": "integer"}}}
    views = [
        f.llm(role, "As {{ role }}, judge: {{ s }} for {{ row.id }}", role=role, s=summary, row=row)
        for role in ROLES
    ]
    f.output("id", row["id"])
    f.output("verdict", f.llm("verdict", "{{ v | join('\n') }}", v=views, schema=schema))
    return f


def trading(operators: int, number_of_round: int) -> flow.Flow:
    """Each with a template of its own, of 1 KB, that no other round has, and up to four inputs."""
    f = flow.Flow("trading", max_tokens=64, on_cut="keep")
    row = f.input("row")
    made = [row["news"]]
    for number in range(operators - 1):
        who = f"You are number {number}.{number_of_round}. {WORDS * 16}"
        text = f"{who}{{{{ row.symbol }}}}: {{{{ v | join }}}}"
        made.append(f.llm(f"analyst{number}", text, row=row, v=made[-4:] if number else [row]))
    f.output("decision", made[-1])
    return f


def shared() -> flow.Flow:
    f = flow.Flow("shared", max_tokens=16, on_cut="keep")
    row = f.input("row")
    context = f.llm("context", "Sum up {{ row.context }}", row=row)
    f.output("answer", f.llm("ask", "{{ c }}: {{ row.question }}", c=context, row=row))
    return f


def documents(count: int) -> Iterator[dict[str, object]]:
    for number in range(count):
        yield {"id": number, "text": f"{number // 10} {WORDS * 32}"}


def questions(count: int) -> Iterator[dict[str, object]]:
    for number in range(count):
        yield {"context": f"context {number // 100} {WORDS}", "question": f"question {number}?"}


class Drive:
    """Runs an executor to its end; `cpu_s` is its own time, `calls` those that were issued."""

    def __init__(self, plan: Plan, table: Iterator[dict[str, object]]) -> None:
        self._executor = Executor(plan, FlowLimits(capacity=CAPACITY))
        self._table = enumerate(table)
        self._facts: deque[FlowFact] = deque()
        self.cpu_s, self.calls, self.written = 0.0, 0, 0
        self._ended = False

    def run(self, each_row: Callable[[int], None] = lambda _: None) -> None:
        self._do(self._executor.start())
        while not self._ended:
            fact = self._facts.popleft()
            began = time.process_time()
            commands = self._executor.handle(fact)
            self.cpu_s += time.process_time() - began
            before = self.written
            self._do(commands)
            if self.written > before:
                each_row(self.written)

    def _do(self, commands: list[FlowCommand]) -> None:
        for command in commands:
            if isinstance(command, IssueCall):
                self.calls += 1
                text = '{"score": 3}' if command.operator == "verdict" else f"view {self.calls}"
                self._facts.append(CallAnswered(command.call, text, 500, 8))
            elif isinstance(command, ReadRows):
                self._read(command.count)
            elif isinstance(command, FetchCached):
                self._facts.append(CacheAnswered(command.call, hit=False))
            elif isinstance(command, EndRun):
                self._ended = True
            self.written += isinstance(command, WriteRow)

    def _read(self, count: int) -> None:
        for _ in range(count):
            read = next(self._table, None)
            if read is None:
                self._facts.append(InputEnded())
                return
            number, values = read
            self._facts.append(RowRead(number, values, size_bytes=2_500))


def call_us(count: int) -> float:
    drive = Drive(reports().compile(), documents(count))
    gc.collect()
    drive.run()
    assert drive.written == count
    return drive.cpu_s / drive.calls * 1e6


def plan_ms(number: int) -> float:
    """`number`: of the round."""
    declared = trading(OPERATORS, number)
    gc.collect()
    began = time.process_time()
    declared.compile()
    return (time.process_time() - began) * 1e3


def growth_mib(count: int) -> float:
    """In a process of its own."""
    command = [sys.executable, "-m", "bench.flows", "--memory", str(count)]
    out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return float(out)


def _grown(count: int) -> float:
    """MiB of its peak beyond that of the first thousand rows."""
    first: list[float] = []

    def look(written: int) -> None:
        if written == min(1_000, count):
            first.append(peak_mib())

    Drive(shared().compile(), questions(count)).run(look)
    return peak_mib() - first[0]


def measure(console: Console, *, quick: bool) -> list[Figure]:
    rounds = QUICK_ROUNDS if quick else ROUNDS
    many = QUICK_MANY_ROWS if quick else MANY_ROWS
    found: dict[str, list[float]] = {CALL: [], PLAN: [], MEMORY: []}
    for number in range(rounds):
        console.print(f"round {number + 1} of {rounds}")
        found[CALL].append(call_us(QUICK_ROWS if quick else ROWS))
        found[PLAN].append(plan_ms(number))
    found[MEMORY].append(growth_mib(many))
    units = {CALL: "us", PLAN: "ms", MEMORY: "MiB"}
    return [
        Figure(
            name=name.format(many),
            value=report.spread(values).median,
            unit=units[name],
            target=TARGETS[name],
            detail={"kairos": report.spread(values)},
        )
        for name, values in found.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.flows", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few rows, one round")
    parser.add_argument("--memory", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.memory:
        print(_grown(arguments.memory))
        return
    console = report.console()
    found = measure(console, quick=arguments.quick)
    if not arguments.quick:
        rows.keep(found, "flows")
    report.show(found, console, {"kairos": "Kairos"})


if __name__ == "__main__":
    main()
