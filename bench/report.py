"""The figures of all benches as one JSON list, and those of one as a table."""

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import msgspec
from rich.console import Console
from rich.table import Table

RESULTS = Path(__file__).with_name("results.json")
WIDTH = 140


class Figure(msgspec.Struct, kw_only=True):
    """One claim. `reference` is the peer's figure, from the same run, or the paper's."""

    name: str
    value: float | None  # None: could not be measured
    unit: str
    target: float | None  # None: none was set
    better: Literal["lower", "higher"] = "lower"
    met: bool | None = None
    reference: float | None = None
    detail: Mapping[str, object] = {}

    def __post_init__(self) -> None:
        if self.target is not None and self.value is not None:
            higher = self.better == "higher"
            self.met = self.value >= self.target if higher else self.value < self.target


class Spread(msgspec.Struct, frozen=True):
    """One quantity of one system, over the rounds."""

    median: float
    lowest: float
    highest: float
    rounds: int


def spread(values: list[float]) -> Spread:
    return Spread(
        round(statistics.median(values), 1),
        round(min(values), 1),
        round(max(values), 1),
        len(values),
    )


def percentile(values: Sequence[float], percent: float) -> float:
    """By nearest rank: a value that occurred."""
    ranked = sorted(values)
    return ranked[min(len(ranked) - 1, int(len(ranked) * percent / 100))]


def console() -> Console:
    """Wide enough for a table where nobody says how wide it is."""
    found = Console()
    return found if found.is_terminal else Console(width=WIDTH)


def write(figures: list[Figure], path: Path) -> None:
    path.write_bytes(msgspec.json.format(msgspec.json.encode(figures), indent=2) + b"\n")


def add(figures: list[Figure], path: Path) -> None:
    """Write them beside those of other benches; one of the same name is replaced."""
    known = msgspec.json.decode(path.read_bytes(), type=list[Figure]) if path.exists() else []
    given = {figure.name for figure in figures}
    write([*(figure for figure in known if figure.name not in given), *figures], path)


def show(figures: list[Figure], console: Console, systems: dict[str, str]) -> None:
    """`systems`: the columns, by the name in the figures' details, and their headings."""
    table = Table(title="Medians; in brackets the lowest and the highest round")
    for heading in ("", *systems.values(), "target", ""):
        table.add_column(heading, justify="right" if heading else "left")
    for figure in figures:
        table.add_row(
            f"{figure.name}, {figure.unit}",
            *(_cell(figure.detail.get(system)) for system in systems),
            _target(figure),
            {True: "met", False: "[red]not met", None: ""}[figure.met],
        )
    console.print(table)


def _target(figure: Figure) -> str:
    if figure.target is None:
        return ""
    return f"{'≥' if figure.better == 'higher' else '<'} {figure.target:g}"


def _cell(value: object) -> str:
    if not isinstance(value, Spread):
        return "-"
    return f"{value.median:g} [dim][{value.lowest:g}-{value.highest:g}]"
