"""Where experiments put what they found: figures in report.json, rows in results/NAME.jsonl."""

import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from bench.report import Figure, add

EXPERIMENTS = Path(__file__).parent
REPORT = EXPERIMENTS / "report.json"
RESULTS = EXPERIMENTS / "results"


def add_figures(figures: Sequence[Figure], path: Path = REPORT) -> None:
    """Put figures among those of other experiments; one of the same name is replaced."""
    add(list(figures), path)


def write_rows(path: Path, rows: Iterable[msgspec.Struct]) -> None:
    """One result a line, in place of what the file held. Same rows, same bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(msgspec.json.encode(row) + b"\n" for row in rows))


def commit() -> str:
    """Of the code that runs; `+` when files that git tracks have changed since."""
    describe = ["git", "describe", "--always", "--exclude=*", "--abbrev=12", "--dirty=+"]
    done = subprocess.run(describe, cwd=EXPERIMENTS, capture_output=True, text=True, check=False)  # noqa: S603
    return done.stdout.strip() or "unknown"
