"""Figures as rows that are kept: each with the commit, the machine, and a hash of the code that it
is of. `bench/results.jsonl` has the latest of each; the tables of the documentation are made of
them (`bench/tables.py`). `bench/results.json` has the same figures for other programs, and is not
kept."""

import os
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import msgspec

import kairos
from bench import report
from bench.code import code_of, commit, files_of
from bench.report import Figure, Spread
from kairos.host import describe_interpreter

ROWS = Path(__file__).with_name("results.jsonl")
_BEGAN_AT = time.time()
# What measuring itself writes does not make other code of a checkout.
WRITTEN = (
    "bench/results.jsonl",
    "docs/profile.md",
    "bench/profile.jsonl",
    "docs/research/costs.md",
    "docs/how-to/tls.md",
)


class Row(msgspec.Struct, frozen=True, kw_only=True):
    bench: str
    name: str
    value: float | None
    unit: str
    target: float | None
    reference: float | None  # the peer's figure, from the same run, or the paper's
    spread: dict[str, Spread]  # by system, or by measure
    commit: str
    code: str  # see `code_of`
    date: str
    machine: str


def machine() -> str:
    """Its processor and cores, whatever this process is pinned to; how Python was built, which is
    worth a quarter; and whether `make compile` was run here."""
    brain = "compiled" if kairos.is_compiled else "interpreted"
    return f"{processor()}, {os.cpu_count()} cores, {describe_interpreter()}, brain {brain}"


def processor() -> str:
    """Its name, which of some says little, and what tells its generation apart."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    told = {name.strip(): value.strip() for name, _, value in (x.partition(":") for x in lines)}
    return (
        f"{told.get('model name', '?')}, family {told.get('cpu family', '?')} "
        f"model {told.get('model', '?')}"
    )


def keep(figures: Sequence[Figure], bench: str, path: Path = ROWS) -> None:
    """In place of the earlier rows of this bench; and in bench/results.json. Not where code was
    changed since this process began: whose figures these are could not be said."""
    if changed := [path.name for path in files_of(bench) if path.stat().st_mtime > _BEGAN_AT]:
        print(
            f"bench: nothing is kept, for code has changed meanwhile: {changed[0]}", file=sys.stderr
        )
        return
    report.add(list(figures), report.RESULTS)
    now, at, here = datetime.now(UTC).date().isoformat(), commit(written=WRITTEN), machine()
    made = [
        Row(
            bench=bench,
            name=each.name,
            value=each.value,
            unit=each.unit,
            target=each.target,
            reference=each.reference,
            spread={key: told for key, told in each.detail.items() if isinstance(told, Spread)},
            commit=at,
            code=code_of(bench),
            date=now,
            machine=here,
        )
        for each in figures
    ]
    write([*(row for row in read(path) if row.bench != bench), *made], path)


def read(path: Path = ROWS) -> list[Row]:
    lines = path.read_bytes().splitlines() if path.exists() else []
    return [msgspec.json.decode(line, type=Row) for line in lines]


def write(rows: Sequence[Row], path: Path) -> None:
    """All at once: a run that is broken off loses none. Sorted by bench, figures as measured."""
    ordered = sorted(rows, key=lambda row: row.bench)
    written = path.with_name(f"{path.name}.part")
    written.write_bytes(b"".join(msgspec.json.encode(row) + b"\n" for row in ordered))
    written.replace(path)
