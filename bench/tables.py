"""`python -m bench.tables`: the documentation's tables of what was measured, made of the kept rows.

A table stands between `<!-- bench:NAME -->` and `<!-- /bench -->`, and is written anew from the
rows of the bench NAME in bench/results.jsonl. `--check` writes nothing and fails where a table is
not what its rows say, as when it was edited by hand. `--fresh` also fails where rows are of other
code than today's, or where there are none, and names the command that measures them.
"""

import argparse
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from bench import (
    brain,
    bus,
    bus_calls,
    flows,
    health,
    learning,
    messages,
    placement,
    poisoned,
    scenarios,
    simulation,
    tls,
    workers,
)
from bench.code import ROOT, code_of
from bench.report import Spread
from bench.rows import Row, read

DOCUMENTS = (
    "docs/research/costs.md",
    "docs/concepts/tenants.md",
    "docs/how-to/predict.md",
    "docs/how-to/tls.md",
    "docs/design/call-cost.md",
)
_BLOCK = re.compile(r"(<!-- bench:([a-z]+) -->\n)(.*?)(<!-- /bench -->)", re.DOTALL)
_LARGER = {"us": ("ms", 1_000.0), "ms": ("s", 1_000.0)}
_UNITS = {"us": "µs", "/s": "per second", "1,000 tokens/s": "thousand"}
PAPER = "the paper"
RATIO = "Kairos, times vllm-router"
MEAN_P99 = {"mean": "mean", "p99": "p99"}


class Table(msgspec.Struct, frozen=True):
    """Which figures of a bench, and which columns: systems and their headings."""

    columns: Mapping[str, str]
    figures: Sequence[str]


TABLES = {
    "gateway": Table(
        {
            "direct": "engines alone",
            "vllm-router": "vllm-router",
            "kairos": "Kairos",
            RATIO: "ratio",
        },
        [name for name, _, _ in scenarios.FIGURES if name != scenarios.LATENCY],
    ),
    "learning": Table(
        {"kairos": "Kairos", PAPER: PAPER},
        [
            *(learning.EMBED.format(number) for number in learning.AGENTS),
            *(learning.PLACE, learning.LEARN, learning.FACT),
            *(learning.PUSH, learning.POP, learning.REKEY),
        ],
    ),
    "bus": Table(
        bus.SYSTEMS,
        [
            *(bus_calls.CALL.format(which) for which in ("p50", "p99")),
            *(bus.ADDED_CALL, bus_calls.CPU),
            *(
                leg.format(percentile, messages.IN_FLIGHT[1])
                for leg in (messages.PUBLISHED, messages.HANDED_ON)
                for percentile in ("p50", "p99")
            ),
            *(messages.RATE, messages.RELAYED_RATE),
        ],
    ),
    "simulation": Table({"kairos": "Kairos"}, [name for name, *_ in simulation.FIGURES]),
    "placement": Table(MEAN_P99, placement.shown()),
    "brain": Table(MEAN_P99, brain.shown()),
    "flows": Table({"kairos": "Kairos"}, flows.shown()),
    "health": Table({"kairos": "Kairos"}, health.shown()),
    "workers": Table({"kairos": "Kairos"}, workers.shown()),
    "poisoned": Table(
        {"fans out": "an honest neighbour that fans out", "poisoned": "a poisoned one"},
        [poisoned.WORKFLOWS, poisoned.TAIL],
    ),
    "tls": Table(tls.SYSTEMS, tls.shown()),
}


def rewritten(text: str, rows: Sequence[Row]) -> str:
    """With each block as its rows say. One that has no rows yet stays."""

    def replaced(found: re.Match[str]) -> str:
        bench = found[2]
        of_bench = [row for row in rows if row.bench == bench]
        made = table(TABLES[bench], of_bench) if of_bench else found[3]
        return f"{found[1]}{made}{found[4]}"

    return _BLOCK.sub(replaced, text)


def table(wanted: Table, rows: Sequence[Row]) -> str:
    by_name = {row.name: row for row in rows}
    lines = [
        f"| | {' | '.join(wanted.columns.values())} |",
        f"|---|{'--:|' * len(wanted.columns)}",
    ]
    lines += [
        f"| {name} | {' | '.join(_cells(by_name[name], wanted.columns))} |"
        for name in wanted.figures
        if name in by_name
    ]
    of = sorted({f"{row.commit}, {row.date}, {row.machine}" for row in rows})
    return "\n".join([*lines, "", f"(Commit {'; '.join(of)}.)", ""])


def _cells(row: Row, columns: Mapping[str, str]) -> list[str]:
    return [_cell(row, column) for column in columns]


def _cell(row: Row, column: str) -> str:
    if column == PAPER:
        return quantity(row.reference, row.unit) if row.reference is not None else ""
    if column == RATIO:
        return _short(row.value / row.reference) if row.value and row.reference else ""
    return _spread(row.spread.get(column), row.unit)


def _spread(told: Spread | None, unit: str) -> str:
    if told is None:
        return ""
    if told.rounds == 1:
        return quantity(told.median, unit)
    unit, size = _scaled(told.median, unit)
    lowest, highest = (_short(each / size) for each in (told.lowest, told.highest))
    return f"{_short(told.median / size)} {_UNITS.get(unit, unit)} [{lowest}-{highest}]"


def quantity(value: float, unit: str) -> str:
    unit, size = _scaled(value, unit)
    return f"{_short(value / size)} {_UNITS.get(unit, unit)}"


def _scaled(value: float, unit: str) -> tuple[str, float]:
    """The unit in which it is no large number, and how much larger that is."""
    size = 1.0
    while unit in _LARGER and value / size >= 2_000:
        unit, step = _LARGER[unit]
        size *= step
    return unit, size


def _short(value: float) -> str:
    """Three digits that count; whole numbers whole."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def edited(documents: Mapping[str, str], rows: Sequence[Row]) -> list[str]:
    """What is wrong with tables that are not what their rows say."""
    return [
        f"{name}: a table is not what bench/results.jsonl says: run `make bench-tables`"
        for name, text in documents.items()
        if rewritten(text, rows) != text
    ]


def stale(
    documents: Mapping[str, str], rows: Sequence[Row], code: Callable[[str], str] = code_of
) -> list[str]:
    """What is wrong with tables whose rows are of other code, or not there."""
    found = []
    for name, text in documents.items():
        for bench in sorted({block[2] for block in _BLOCK.finditer(text)}):
            codes = {row.code for row in rows if row.bench == bench}
            if codes != {code(bench)}:
                what = f"rows of other code ({', '.join(codes)})" if codes else "no rows"
                renew = f"`python -m bench.{bench}`, then `make bench-tables`"
                found.append(f"{name}: the table bench:{bench} has {what}: run {renew}")
    return found


def _documents(root: Path) -> dict[str, str]:
    return {name: (root / name).read_text() for name in DOCUMENTS}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.tables", description=__doc__)
    parser.add_argument("--check", action="store_true", help="fail where a table was edited")
    parser.add_argument("--fresh", action="store_true", help="fail where rows are of other code")
    arguments = parser.parse_args()
    rows, documents = read(), _documents(ROOT)
    wrong = edited(documents, rows) if arguments.check or arguments.fresh else []
    wrong += stale(documents, rows) if arguments.fresh else []
    if wrong:
        sys.exit("\n".join(wrong))
    if not (arguments.check or arguments.fresh):
        for name, text in documents.items():
            (ROOT / name).write_text(rewritten(text, rows))


if __name__ == "__main__":
    main()
