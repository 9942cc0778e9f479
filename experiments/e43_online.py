"""Rows that arrive, Poisson, on devices that switch models: what rate is kept up with.

A topological scheduler that takes rows as they come switches for every few of them; one that takes
them in mini-batches, those of an interval of 10 s, for every batch, as Halo's baselines do. Kairos
lets in what there is, and a device keeps its model while there is work for it. Expected: where
models switch at least 4 times the highest throughput of rows taken as they come. The bound is
(s + c) / (s + c / b) for a switch of s seconds, rows of c, and b rows a switch.

Over mini-batches little can be gained: those of 10 s that switch for s seconds keep up with the
share 1 - s/10 of what devices do that never switch. Wakes are 2 s a batch of W3, 4 s of W5, 4.4 s
of `three`: at most 1.25, 1.67 and 1.79 times; and less here, where the first loads, 35 s and more
of each run, are everybody's.

Throughput is of all rows over the time from the first arrival to the last end, at rates from far
below what is kept up with to far above.
"""

from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from bench.report import Figure
from experiments.claim import Study, table
from experiments.grids import around
from experiments.switching import KAIROS, SwitchingRow, SwitchingRun, measured
from kairos.core import Interval

AIM = 4.0
RATES = (0.1, 0.4, 1.6, 6.4, 25.6)
INTERVAL_S = 10.0
SEEDS, QUICK_SEEDS = 5, 2
COME, BATCHES = "topological, as they come", "topological, mini-batches"
CASES = (("W3", 1), ("W5", 1), ("three", 2), ("W2", 2))
MOST_ROWS, LEAST_ROWS, STAYS_S = 400, 40, 120


def measure(quick: bool) -> Iterator[SwitchingRow]:
    yield from measured(_runs(quick))


def _runs(quick: bool) -> Iterator[SwitchingRun]:
    for name, devices in CASES[1:2] if quick else CASES:
        for rate in RATES[2:3] if quick else RATES:
            count = LEAST_ROWS if quick else _rows(rate)
            base = SwitchingRun(
                workflow=name, devices=devices, rows=count, per_s=rate, loads="sleep"
            )
            for seed in range(1, (QUICK_SEEDS if quick else SEEDS) + 1):
                for system in (KAIROS, COME, BATCHES):
                    yield replace(as_system(base, system), seed=seed)


def _rows(rate: float) -> int:
    return min(MOST_ROWS, max(LEAST_ROWS, round(rate * STAYS_S)))


def as_system(base: SwitchingRun, system: str) -> SwitchingRun:
    """How many rows it takes together, and how it places their calls."""
    if system == KAIROS:
        return base
    assert base.per_s is not None
    together = base.devices if system == COME else max(base.devices, round(base.per_s * INTERVAL_S))
    return replace(base, system="topological", max_open_rows=together)


def _throughputs(
    rows: Sequence[SwitchingRow], name: str, devices: int, system: str
) -> dict[float, list[float]]:
    """By rate, of each seed, rows a second."""
    found: dict[float, dict[int, float]] = {}  # mini-batches may be as small as what comes
    for each in rows:
        asked = each.run
        if (asked.workflow, asked.devices) != (name, devices) or asked.per_s is None or not each.s:
            continue
        base = replace(
            asked, system=KAIROS, max_open_rows=SwitchingRun(workflow=name).max_open_rows
        )
        if as_system(base, system) == asked:
            found.setdefault(asked.per_s, {})[asked.seed] = asked.rows / each.s
    return {rate: [by_seed[seed] for seed in sorted(by_seed)] for rate, by_seed in found.items()}


def gain(rows: Sequence[SwitchingRow], name: str, devices: int, other: str) -> Interval | None:
    """Kairos's highest throughput over the other's, seed by seed."""
    ours, theirs = (_throughputs(rows, name, devices, each) for each in (KAIROS, other))
    if not ours or not theirs:
        return None
    best = [max(each) for each in zip(*ours.values(), strict=True)]
    beside = [max(each) for each in zip(*theirs.values(), strict=True)]
    return around([us / them for us, them in zip(best, beside, strict=True)])


def section(rows: Sequence[SwitchingRow]) -> str:
    lines, gains = [], []
    for name, devices in dict.fromkeys((e.run.workflow, e.run.devices) for e in rows):
        for system in (KAIROS, COME, BATCHES):
            by_rate = _throughputs(rows, name, devices, system)
            shown = [f"{around(each).mean:.2f}" for each in by_rate.values()]
            rates = [f"{rate:g}/s" for rate in by_rate]
            lines.append([f"{name}, {devices}: {system}", *shown])
        found = [gain(rows, name, devices, other) for other in (COME, BATCHES)]
        gains.append([f"{name}, {devices}", *(_shown(each) for each in found)])
    return (
        "Rows a second, at the rates at which they arrive; devices after the workflow. Whoever "
        "takes rows as they come has as many of them as devices: with one model (W2) that alone "
        "costs what the table shows. Mini-batches grow with the rate, so few loads are left to "
        "save.\n\n"
        + table(["", *rates], lines)
        + f"\n\nHighest throughput of Kairos over the others'; bold: at least {AIM:g}.\n\n"
        + table(["", COME, BATCHES], gains)
    )


def _shown(of: Interval | None) -> str:
    if of is None:
        return "not run"
    times = f"{of.mean:.1f} [{of.low:.1f}, {of.high:.1f}]"
    return f"**{times}**" if of.mean >= AIM else times


def figures(rows: Sequence[SwitchingRow]) -> list[Figure]:
    cases = dict.fromkeys((e.run.workflow, e.run.devices) for e in rows)
    found = {
        f"{name}/{devices}": {
            other: each.mean if (each := gain(rows, name, devices, other)) else None
            for other in (COME, BATCHES)
        }
        for name, devices in cases
    }
    best = max((each[COME] or 0.0 for each in found.values()), default=None)
    return [
        Figure(
            name="e43 highest throughput over a topological scheduler's, as rows come, at best",
            value=best,
            unit="times",
            target=AIM,
            better="higher",
            detail=found,
        )
    ]


STUDY = Study(
    title="Rows that arrive, on devices that switch models",
    row=SwitchingRow,
    measure=measure,
    section=section,
    figures=figures,
)
