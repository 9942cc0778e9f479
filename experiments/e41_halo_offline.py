"""A batch of rows, planned, beside one call at a time: Halo's headline, 18.6 times.

Halo's comparison is with Transformers, which runs one call at a time on one device. Expected: at
least 18.6 times at its best, as in the paper (which says 2.0 to 18.6 over its workflows), on two
devices, as there. Loads count; with more rows they weigh less. `experiments/switching.py` says what
is run.
"""

from collections.abc import Iterator, Sequence

from bench.report import Figure
from experiments.claim import Study, table
from experiments.switching import (
    ALIKE,
    KAIROS,
    ONE,
    SWITCHING,
    SwitchingRow,
    SwitchingRun,
    measured,
    speedup,
)

AIM = 18.6
WORKFLOWS = (*ALIKE, *SWITCHING)
ROWS, QUICK_ROWS, SEEDS, QUICK_SEEDS = 1_000, 60, 5, 2


def measure(quick: bool) -> Iterator[SwitchingRow]:
    yield from measured(
        SwitchingRun(workflow=name, system=system, seed=seed, rows=QUICK_ROWS if quick else ROWS)
        for name in (("W2", "W5") if quick else WORKFLOWS)
        for system in (KAIROS, ONE)
        for seed in range(1, (QUICK_SEEDS if quick else SEEDS) + 1)
    )


def section(rows: Sequence[SwitchingRow]) -> str:
    lines = []
    for name in dict.fromkeys(each.run.workflow for each in rows):
        [ours, theirs] = (_first(rows, name, system) for system in (KAIROS, ONE))
        found = speedup(rows, ours.run, theirs.run)
        assert found is not None
        times = f"{found.mean:.1f} [{found.low:.1f}, {found.high:.1f}]"
        bold = f"**{times}**" if found.mean >= AIM else times
        lines.append([name, f"{ours.run.rows}", f"{ours.s:.1f}", f"{theirs.s:.0f}", bold])
    return (
        f"Aim: {AIM} times at best. Where it is less, loads bound it: before the first token a "
        "model has to be there.\n\n"
        + table(["workflow", "rows", "Kairos, s", "one at a time, s", "times"], lines)
    )


def _first(rows: Sequence[SwitchingRow], name: str, system: str) -> SwitchingRow:
    return next(each for each in rows if (each.run.workflow, each.run.system) == (name, system))


def figures(rows: Sequence[SwitchingRow]) -> list[Figure]:
    names = dict.fromkeys(each.run.workflow for each in rows)
    found = {
        name: each.mean
        for name in names
        if (each := speedup(rows, *(_first(rows, name, of).run for of in (KAIROS, ONE))))
    }
    best = max(found, key=found.__getitem__)
    return [
        Figure(
            name="e41 one call at a time, over Kairos, at best",
            value=found[best],
            unit="times",
            target=AIM,
            better="higher",
            detail={"workflow": best, "by": found},
        )
    ]


STUDY = Study(
    title="A batch beside one call at a time",
    row=SwitchingRow,
    measure=measure,
    section=section,
    figures=figures,
)
