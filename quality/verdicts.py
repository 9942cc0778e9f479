"""What was found about faults that no test noticed: `docs/quality/mutants.toml`."""

import tomllib
from pathlib import Path

from quality.operators import Mutant

FILE = "docs/quality/mutants.toml"
KINDS = ("mended", "equivalent", "accepted")
_KEY = ("file", "where", "source", "what")

Key = tuple[str, ...]


class Verdicts:
    """By fault: a test notices it now, nobody can notice it, or nobody needs to."""

    def __init__(self, path: Path) -> None:
        self._kinds: dict[Key, str] = {}
        rows = tomllib.loads(path.read_text()).get("mutant", []) if path.exists() else []
        for row in rows:
            key = tuple(row[name] for name in _KEY)
            if row["verdict"] not in KINDS or not row["why"].strip():
                raise ValueError(f"{path}: no verdict, or no reason: {row}")
            if key in self._kinds:
                raise ValueError(f"{path}: twice: {row}")
            self._kinds[key] = row["verdict"]

    def of(self, mutant: Mutant) -> str:
        """Return the verdict; empty if there is none."""
        return self._kinds.get(_key(mutant), "")


def row_of(mutant: Mutant) -> str:
    """Return what to write into the file, with the verdict left open."""
    texts = zip(_KEY, _key(mutant), strict=True)
    lines = "".join(f"{name} = {_quoted(text)}\n" for name, text in texts)
    return f'[[mutant]]\n{lines}verdict = ""\nwhy = ""\n'


def _key(mutant: Mutant) -> Key:
    return (mutant.file, mutant.where, mutant.source, mutant.what)


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\t", "\\t")
    return f'"{escaped}"'
