"""The three constants of the starvation guard, each halved and doubled.

Every combination of half, the value today and twice of `PATIENCE`, `GRACE_US` and `SHARE`
(`kairos/core/scheduler/guard.py`), with the default policy and placement, in the four of the ten
settings of `e51_untuned.py` where the former guard moved most calls. On seeds 1 and 2, which the
report of `e51_untuned.py` leaves out. Ratios are to the values of today, run by run.

Expected: none is better both in the mean and in the P99 of slowdown by more than 1 %. Found: half
the patience and twice the share are worse. Twice the patience is 2 to 4 % quicker in the mean, in
most combinations beyond its interval, and no tail differs by more than its interval.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from itertools import product

import msgspec

from experiments.claim import Study, change, table
from experiments.e51_untuned import CHOSEN_ON, QUICK_PART
from experiments.report import RESULTS
from experiments.untuned import TODAY, Row, Run, kept_rows, measured
from kairos.core import SECOND, Interval, mean_interval
from kairos.core.scheduler.guard import GRACE_US, PATIENCE, SHARE

WHERE = ("heavy", "code", "unequal", "dom-long")
FACTORS = (0.5, 1, 2)
NOTICED = 0.01


class Constants(msgspec.Struct, frozen=True):
    patience: float
    grace_s: float
    share: float


VALUES = Constants(PATIENCE, GRACE_US / SECOND, SHARE)
GRID = tuple(
    Constants(VALUES.patience * patience, VALUES.grace_s * grace, VALUES.share * share)
    for patience, grace, share in product(FACTORS, repeat=3)
)


def runs(quick: bool) -> list[Run]:
    where, grid, part = (WHERE[:1], GRID[::13], QUICK_PART) if quick else (WHERE, GRID, 1)
    return [
        Run(
            setting=name,
            guard=TODAY,
            seed=seed,
            patience=each.patience,
            grace_s=each.grace_s,
            share=each.share,
            part=part,
        )
        for name in where
        for each in grid
        for seed in CHOSEN_ON
    ]


def measure(quick: bool) -> Iterator[Row]:
    if quick:
        return measured(runs(quick=True))
    kept = kept_rows(RESULTS / "e52_guard_constants.jsonl")
    return measured(runs(quick=False), kept, os.cpu_count() or 1)


Value = Callable[[Row], float]
COMPARED: dict[str, Value] = {
    "mean": lambda row: row.mean_s,
    "P99": lambda row: row.p99_s,
    "P99 of slowdown": lambda row: row.p99_slowdown,
}


def section(rows: Sequence[Row]) -> str:
    header = [
        "patience, grace in s, share",
        *(f"{name}, %" for name in COMPARED),
        "worst slowdown",
        "moved, %",
    ]
    lines = []
    for constants, of in _by_constants(rows).items():
        name = f"{constants.patience:g}, {constants.grace_s:g}, {constants.share:g}"
        is_today = constants == VALUES
        lines.append(
            [
                f"**{name}**" if is_today else name,
                *("" if is_today else change(each) for each in _ratios(rows, of)),
                f"{max(row.worst_slowdown for row in of):.1f}",
                f"{100 * sum(row.moved for row in of) / len(of):.1f}",
            ]
        )
    return f"{_said(rows)}\n\n{table(header, lines)}"


def _said(rows: Sequence[Row]) -> str:
    better = _better(rows)
    if not better:
        return "None is better by more than 1 % both in the mean and in the P99 of slowdown."
    named = "; ".join(f"{each.patience:g}, {each.grace_s:g}, {each.share:g}" for each in better)
    return f"Better by more than 1 % both in the mean and in the P99 of slowdown: {named}."


def _better(rows: Sequence[Row]) -> list[Constants]:
    found = []
    for constants, of in _by_constants(rows).items():
        mean, _, slowdown = (each.mean for each in _ratios(rows, of))
        if max(mean, slowdown) < 1 - NOTICED:
            found.append(constants)
    return found


def _by_constants(rows: Sequence[Row]) -> dict[Constants, list[Row]]:
    found: dict[Constants, list[Row]] = {}
    for row in rows:
        assert row.patience is not None
        assert row.grace_s is not None
        assert row.share is not None
        found.setdefault(Constants(row.patience, row.grace_s, row.share), []).append(row)
    return found


def _ratios(rows: Sequence[Row], of: Sequence[Row]) -> list[Interval]:
    """Return for each of COMPARED the mean of the ratios to the values of today, run by run."""
    today = {(row.setting, row.seed): row for row in _by_constants(rows)[VALUES]}
    found = []
    for value in COMPARED.values():
        ratios = [value(row) / value(today[row.setting, row.seed]) for row in of]
        at = mean_interval(ratios)
        assert at is not None
        found.append(at)
    return found


STUDY = Study(
    title="The constants of the starvation guard",
    row=Row,
    measure=measure,
    section=section,
)
