"""Ten untuned settings: the starvation guard in each, other policies, and other placements.

Workflows are of thirteen published agent systems (`published_agents.py`), with fan-outs of 50
to 100 calls in a graph of thought. Slowdown is the time of a workflow over that on an engine of its
own (`alone_us`), the quickest of the pool. A refused call is tried again twice,
as clients do; a workflow that failed all the same has no time, and is counted.

The first table has the default policy and placement; what differs is the guard: none, the former
one (`former_guard.py`), and today's. The constants of today's were chosen on seeds 1 and 2
(`e52_guard_constants.py`); the table is of seeds 3 to 12. The second table has other policies and
placements: fourteen pairs in two settings, on seeds 3 to 5. Where instances are unequal, the pairs
that separate order from placement are on seeds 3 to 12. The other settings have `gittins` on
`least-kv`. Ratios are on the seeds that both rows have.

Expected: nowhere a mean or P99 above the former guard's beyond its interval; where that moves more
than 1 % of the calls, a mean at least 8 % below it; a worst slowdown of 8 at most. No pair is
quicker than `kairos` on `kairos` in the mean beyond its interval.

Found: no mean or P99 is above the former guard's beyond its interval, and no pair's mean is more
than 0.1 % below that of `kairos` on `kairos`. Means are 11 to 30 % shorter in six settings. Missed:
in `8b`, `h200`, `dom-short` and `dom-chat` they are 0 to 3.5 % shorter, where no guard at all would
gain 0 to 4.2 %; the worst slowdown is 11.0 in `code`, 10.6 in `8b` (8.7 with the former guard), 8.1
in `unequal`, and 17.7 in `h200`, where no guard moves anything that matters. In `dom-long` 6 of
1,000 workflows fail, since their calls reach `max_wait_s`: none did with the former guard, 21 do
without one.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from statistics import fmean

from bench.report import Figure
from experiments.baselines import DEFAULT
from experiments.claim import Study, change, table
from experiments.report import RESULTS
from experiments.untuned import FORMER, GUARDS, SETTINGS, TODAY, Row, Run, kept_rows, measured
from kairos.core import Interval, ratio_interval

SEEDS, CHOSEN_ON = tuple(range(1, 13)), (1, 2)
REPORTED = tuple(seed for seed in SEEDS if seed not in CHOSEN_ON)
FEW = REPORTED[:3]  # seeds of what compares policies and placements
WIDE, DEEP = ("base", "unequal"), ("unequal",)
QUICK, QUICK_PART = ("unequal",), 16
GAINS_WHERE_MOVED, GAIN, WORST = 0.01, 0.92, 8.0

Contender = tuple[str, str, str]  # policy, placement, guard
OURS: Contender = (DEFAULT, DEFAULT, TODAY)
BOTH: Contender = ("gittins", "least-kv", TODAY)  # another order, and another placement
SEPARATING: tuple[Contender, ...] = (
    (DEFAULT, "least-kv", TODAY),
    ("gittins", DEFAULT, TODAY),
    BOTH,
)
BEFORE: tuple[Contender, ...] = ((DEFAULT, DEFAULT, FORMER), ("gittins", "least-kv", FORMER))
CONTENDERS: tuple[Contender, ...] = (
    OURS,
    *SEPARATING,
    *BEFORE,
    (DEFAULT, "time-slot", TODAY),
    (DEFAULT, "round-robin", TODAY),
    ("mean", "least-kv", TODAY),
    ("las", "least-kv", TODAY),
    ("ayo", "round-robin", TODAY),
    ("wasserstein-mds", "time-slot", TODAY),
    ("fcfs-app", "least-kv", TODAY),
    ("fcfs", DEFAULT, TODAY),
    ("fcfs", "least-kv", TODAY),
    ("fcfs", "round-robin", TODAY),
)
FIGURES = ("mean, s", "P95", "P99", "worst slowdown", "P99 of it", "moved, %", "failed")


def _mean_s(row: Row) -> float:
    return row.mean_s


def _p99_s(row: Row) -> float:
    return row.p99_s


def _p99_slowdown(row: Row) -> float:
    return row.p99_slowdown


def runs(quick: bool) -> list[Run]:
    guarded = tuple((DEFAULT, DEFAULT, guard) for guard in GUARDS)
    grids: list[tuple[Iterable[str], tuple[Contender, ...], tuple[int, ...]]]
    if quick:
        grids = [(QUICK, (*guarded, *SEPARATING), REPORTED[:2])]
    else:
        others = [name for name in SETTINGS if name not in WIDE]
        grids = [
            (SETTINGS, guarded, SEEDS),
            (WIDE, CONTENDERS, FEW),
            (DEEP, (OURS, *SEPARATING), REPORTED),
            (others, (BOTH,), FEW),
        ]
    asked = (
        Run(
            setting=name,
            guard=guard,
            policy=policy,
            placement=placement,
            seed=seed,
            part=QUICK_PART if quick else 1,
        )
        for names, contenders, seeds in grids
        for name in names
        for policy, placement, guard in contenders
        for seed in seeds
    )
    return list(dict.fromkeys(asked))


def measure(quick: bool) -> Iterator[Row]:
    if quick:
        return measured(runs(quick=True))
    return measured(
        runs(quick=False), kept_rows(RESULTS / "e51_untuned.jsonl"), os.cpu_count() or 1
    )


Value = Callable[[Row], float]


def section(rows: Sequence[Row]) -> str:
    return f"{_guards(rows)}\n\n{_contenders(rows)}"


def _guards(rows: Sequence[Row]) -> str:
    header = ["setting, guard", *FIGURES, "mean / former, %", "P99 / former, %"]
    lines = []
    for name in dict.fromkeys(row.setting for row in rows):
        former = _guarded(rows, name, FORMER)
        for guard in GUARDS:
            of = _guarded(rows, name, guard)
            changed = ["", ""] if guard == FORMER else _changes(of, former, (_mean_s, _p99_s))
            lines.append([f"{name}, {guard}", *_figures_of(of), *changed])
    return table(header, lines)


def _contenders(rows: Sequence[Row]) -> str:
    compared = {"mean": _mean_s, "P99": _p99_s, "P99 of slowdown": _p99_slowdown}
    over = (f"{each} / kairos, %" for each in compared)
    lines = []
    for name in dict.fromkeys(row.setting for row in rows):
        ours = _of(rows, name, OURS)
        for each in CONTENDERS:
            if of := _of(rows, name, each):
                policy, placement, guard = each
                said = f"{name}: {policy}, {placement}"
                said += ", former guard" if guard == FORMER else ""
                changed = _changes(of, ours, tuple(compared.values()))
                changed = [""] * len(compared) if each == OURS else changed
                lines.append([said, str(len(of)), *_figures_of(of), *changed])
    return table(["setting: policy, placement", "seeds", *FIGURES, *over], lines)


def _guarded(rows: Sequence[Row], setting: str, guard: str) -> list[Row]:
    """Return the rows of the guards' table, by seed."""
    of = _of(rows, setting, (DEFAULT, DEFAULT, guard))
    return [row for row in of if row.seed in REPORTED]


def _of(rows: Sequence[Row], setting: str, contender: Contender) -> list[Row]:
    """Return the rows of seeds that nothing was chosen on, by seed."""
    return [
        row
        for row in sorted(rows, key=lambda row: row.seed)
        if (row.policy, row.placement, row.guard) == contender
        and row.setting == setting
        and row.seed not in CHOSEN_ON
    ]


def _figures_of(of: Sequence[Row]) -> list[str]:
    return [
        f"{_mean(of, _mean_s):.1f}",
        f"{_mean(of, lambda row: row.p95_s):.0f}",
        f"{_mean(of, _p99_s):.0f}",
        f"{max(row.worst_slowdown for row in of):.1f}",
        f"{_mean(of, _p99_slowdown):.1f}",
        f"{100 * _mean(of, lambda row: row.moved):.1f}",
        f"{sum(row.failed for row in of)}",
    ]


def _mean(of: Sequence[Row], value: Value) -> float:
    return fmean(map(value, of))


def _changes(of: Sequence[Row], other: Sequence[Row], values: Sequence[Value]) -> list[str]:
    found = [_ratio(of, other, value) for value in values]
    return ["" if each is None else change(each) for each in found]


def _ratio(of: Sequence[Row], other: Sequence[Row], value: Value) -> Interval | None:
    both = {row.seed for row in of} & {row.seed for row in other}
    ours, theirs = ([value(r) for r in each if r.seed in both] for each in (of, other))
    return ratio_interval(ours, theirs)


def figures(rows: Sequence[Row]) -> list[Figure]:
    names = dict.fromkeys(row.setting for row in rows)
    means: dict[str, list[float]] = {}
    tails: dict[str, list[float]] = {}
    gains: dict[str, float] = {}
    for name in names:
        ours, former = _guarded(rows, name, TODAY), _guarded(rows, name, FORMER)
        for found, value in (means, _mean_s), (tails, _p99_s):
            if (at := _ratio(ours, former, value)) is not None:
                found[name] = [round(each, 3) for each in (at.mean, at.low, at.high)]
        if name in means and _mean(former, lambda row: row.moved) > GAINS_WHERE_MOVED:
            gains[name] = means[name][0]
    worst = {name: max(row.worst_slowdown for row in _guarded(rows, name, TODAY)) for name in names}
    behind = {
        f"{name}: {', '.join(each)}": [round(of, 3) for of in (at.mean, at.low, at.high)]
        for name in names
        for each in CONTENDERS
        if each[2] == TODAY
        and each != OURS
        and (at := _ratio(_of(rows, name, OURS), _of(rows, name, each), _mean_s)) is not None
    }
    mean, tail = "mean over the former guard's", "P99 over the former guard's"
    end, moved = "worst setting (low end)", "where that moves calls, worst"
    return [
        _figure(f"{mean}, {end}", max(low for _, low, _ in means.values()), 1.0, means),
        _figure(f"{tail}, {end}", max(low for _, low, _ in tails.values()), 1.0, tails),
        _figure(f"{mean} {moved}", max(gains.values(), default=0.0), GAIN, gains),
        _figure(
            "mean over that of any other pair (low end)",
            max((low for _, low, _ in behind.values()), default=0.0),
            1.0,
            behind,
        ),
        _figure("worst slowdown", max(worst.values()), WORST, worst, unit="times"),
    ]


def _figure(
    name: str, value: float, target: float, detail: Mapping[str, object], unit: str = "ratio"
) -> Figure:
    return Figure(
        name=f"ten settings untuned, {name}",
        value=value,
        unit=unit,
        target=target,
        better="lower",
        detail=dict(detail),
    )


STUDY = Study(
    title="Ten settings that nothing was tuned on",
    row=Row,
    measure=measure,
    section=section,
    figures=figures,
)
