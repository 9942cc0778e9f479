"""Measure what it takes to plan long tables: `kairos plan` with an engine's profile.

Workflows of 8 to 83 operators over 1,000 and 10,000 rows on two instances. Each is a process of its
own, which reads the table, counts calls and tokens, and says how long the run will take. Learnt is
what 20 simulated rows teach.
Expected: at most 5 s of CPU time for 10,000 rows, and memory that does not grow with the table.
Left out: memory of a program that holds its table. Two minutes of one core.
"""

import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

from bench.report import Figure
from experiments import flow_workloads
from experiments.claim import Study, table
from experiments.flow_workloads import FlowWorkload
from experiments.report import commit

WORKLOADS = ("map_reduce", "debate", "trading")  # functions of `flow_workloads`
ROWS, FEW = (1_000, 10_000), (10, 20)
ENGINE = "h200-llama3-8b"
_LEARNT_FROM = 20
_CHILD = """
import sys
from time import process_time
from bench.memory import peak_mib
from kairos.cli.main import main
sys.argv = ["kairos", *sys.argv[1:]]
try:
    main()
finally:
    print(process_time(), peak_mib(), file=sys.stderr)
"""


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """Costs of planning one workflow over a table."""

    commit: str
    workload: str
    operators: int
    rows: int
    table_mib: float
    cpu_s: float
    peak_mib: float
    calls: int  # that are planned
    expected_s: float


def measure(quick: bool) -> Iterator[Row]:
    at_commit = commit()
    for name in WORKLOADS:
        with TemporaryDirectory() as folder:
            made: FlowWorkload = getattr(flow_workloads, name)()
            at = Path(folder)
            flow = at / "planned.py"
            flow.write_text(
                f"from experiments import flow_workloads\nflow = flow_workloads.{name}().flow\n"
            )
            inputs = at / "rows.jsonl"
            _write(inputs, made, _LEARNT_FROM)
            _kairos("profile", str(flow), "--inputs", str(inputs), "--simulate", ENGINE)
            for count in FEW if quick else ROWS:
                _write(inputs, made, count)
                asked = ["--inputs", str(inputs), "--engine-profile", ENGINE, "--instances", "2"]
                out, cpu_s, peak = _kairos("plan", str(flow), *asked, "--json")
                found = msgspec.json.decode(out)
                yield Row(
                    commit=at_commit,
                    workload=made.name,
                    operators=len(found["operators"]),
                    rows=count,
                    table_mib=inputs.stat().st_size / 2**20,
                    cpu_s=cpu_s,
                    peak_mib=peak,
                    calls=sum(e["calls"] for e in found["prediction"]["by_operator"].values()),
                    expected_s=found["forecast"]["time_s"]["mean"],
                )


def _write(path: Path, workload: FlowWorkload, count: int) -> None:
    encode = msgspec.json.encode
    path.write_bytes(b"".join(encode(row) + b"\n" for row in workload.rows(count, seed=1)))


def _kairos(*arguments: str) -> tuple[bytes, float, float]:
    """Return the output of a command, its CPU seconds, and MiB at most."""
    command = [sys.executable, "-c", _CHILD, *arguments]
    done = subprocess.run(command, capture_output=True, check=True)  # noqa: S603
    cpu_s, peak = done.stderr.splitlines()[-1].split()
    return done.stdout, float(cpu_s), float(peak)


def section(rows: Sequence[Row]) -> str:
    lines = [
        [
            row.workload,
            str(row.operators),
            f"{row.rows:,}",
            f"{row.table_mib:.0f}",
            f"{row.calls:,}",
            f"{row.cpu_s:.1f}",
            f"{row.peak_mib:.0f}",
            f"{row.expected_s:,.0f}",
        ]
        for row in rows
    ]
    heads = ["operators", "rows", "MiB of table", "calls", "CPU s", "MiB at most", "expected s"]
    return table(["planned", *heads], lines)


def figures(rows: Sequence[Row]) -> list[Figure]:
    most = max(row.cpu_s for row in rows)
    return [Figure(name="planning of 10,000 rows", value=round(most, 2), unit="s", target=5.0)]


STUDY = Study(
    title="Planning of long tables",
    row=Row,
    measure=measure,
    section=section,
    figures=figures,
)
