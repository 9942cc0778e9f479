"""Where experiments put what they found: figures in report.json, rows in results/NAME.jsonl."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from bench import code
from bench.report import Figure, add

EXPERIMENTS = Path(__file__).parent
REPORT = EXPERIMENTS / "report.json"
RESULTS = EXPERIMENTS / "results"
QUICK = RESULTS / "quick"  # of reduced runs: not kept


def add_figures(figures: Sequence[Figure], path: Path = REPORT) -> None:
    """Put figures among those of other experiments; one of the same name is replaced."""
    add(list(figures), path)


def write_rows(path: Path, rows: Iterable[msgspec.Struct]) -> None:
    """One result a line, in place of what the file held, all at once: a run that is broken off
    loses none. Same rows, same bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    written = path.with_name(f"{path.name}.part")
    written.write_bytes(b"".join(msgspec.json.encode(row) + b"\n" for row in rows))
    written.replace(path)


def commit(directory: Path = EXPERIMENTS) -> str:
    """Of the code that runs; `+` when files that git tracks have changed since, but for those that
    experiments write."""
    return code.commit(directory, ("REPORT.md", "report.json", "results"))


@contextmanager
def picture(path: Path, *grid: int, **layout: Any) -> Iterator[tuple[Any, Any]]:
    """A matplotlib figure and its axes, kept as SVG when the block ends; the same figures give the
    same bytes. `grid` and `layout` are those of `matplotlib.pyplot.subplots`."""
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams["svg.hashsalt"] = "kairos"
    mpl.rcParams["svg.fonttype"] = "none"  # text stays text: smaller, and it can be searched
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(*grid, **layout)
    yield figure, axes
    figure.savefig(path.with_suffix(".svg"), metadata={"Date": None})
    plt.close(figure)
