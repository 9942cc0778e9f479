"""Records of runs, a line of JSON each, and where they were made."""

import json
import subprocess
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.rows import machine

ROOT = Path(__file__).parents[1]
FOLDER = Path("docs/quality")  # of the checkout; what lies there makes nothing due
ACCEPTANCE, GATE = FOLDER / "acceptance.jsonl", FOLDER / "gate.jsonl"

Record = dict[str, Any]


def append(path: Path, **values: object) -> Record:
    """Add one record to a file, with the commit, the machine and the time, and return it."""
    record = {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": git("rev-parse", "HEAD"),
        "changed": bool(changed_files()),
        "machine": machine(),
        **values,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write(json.dumps(record) + "\n")
    return record


def read(path: Path) -> Iterator[Record]:
    """Yield the records of a file, oldest first; none where there is no file."""
    if path.exists():
        for line in path.read_text().splitlines():
            if line.strip():
                yield json.loads(line)


def git(*arguments: str) -> str:
    """Return what a git command prints about the checkout. Raises `CalledProcessError`."""
    done = subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True)
    return done.stdout.rstrip("\n")


def changed_files(paths: Sequence[str] = (".",)) -> list[str]:
    """Return files below these paths that differ from the last commit, records left out."""
    return git(
        "status", "--porcelain=v1", "--no-renames", "--", *paths, f":(exclude){FOLDER}"
    ).splitlines()
