"""Batches on devices that switch models, beside a topological scheduler, round robin, co-location
and data parallelism; and what each part of the plan brings.

Expected: at least 1.5 times as quick as the topological one where models switch, and never slower
with one model. What bounds it: each model is loaded once at least, and the devices together cannot
do the calls quicker; where rows are few, the first loads are most of the time, for all. Where the
aim is missed it is said how much quicker than the topological one any placement could be
(`experiments/switching_bounds.py`).

With one device a row's context is lost with each switch: what a copy of it in the host's memory
brings is beside.

Ablations are of Kairos with one part off: `kv` prefix caches, `merging` equal calls made once (four
rows share a document), `order` (first come, first served), `replicas`, `optimizer` (operators to
devices in turn), `batching` (16 sequences at most).
"""

from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from bench.report import Figure
from experiments.claim import Study, table
from experiments.switching import (
    ALIKE,
    BASELINES,
    DEVICES,
    KAIROS,
    SWITCHING,
    SwitchingRow,
    SwitchingRun,
    measured,
    speedup,
)
from experiments.switching_bounds import best_placement_s, loads_alone_s
from kairos.core import Interval

AIM, NEVER_BELOW = 1.5, 1.0
ROWS, QUICK_ROWS, SEEDS, QUICK_SEEDS = 200, 60, 5, 2
PARTS = ("kv", "merging", "order", "replicas", "optimizer", "batching")
# Workflow, devices, and whether models sleep: one device with two models has to switch.
CASES = (
    *((name, 2, "start") for name in (*ALIKE, *SWITCHING)),
    *((name, 1, "start") for name in ("W3", "W5")),
    *((name, 2, "sleep") for name in ("W5", "three")),
)


def measure(quick: bool) -> Iterator[SwitchingRow]:
    yield from measured(_runs(quick))


def _runs(quick: bool) -> Iterator[SwitchingRun]:
    count = QUICK_ROWS if quick else ROWS
    for name, devices, loads in CASES[4:6] if quick else CASES:
        base = SwitchingRun(workflow=name, devices=devices, loads=loads, rows=count)
        for seed in range(1, (QUICK_SEEDS if quick else SEEDS) + 1):
            for system in (KAIROS, *BASELINES):
                yield replace(base, system=system, seed=seed)
            if devices < DEVICES:
                yield replace(base, host_memory=True, seed=seed)
    for name in ("W5",) if quick else ("W4", "W5"):
        base = SwitchingRun(workflow=name, rows=count, shared=4)
        for seed in range(1, (QUICK_SEEDS if quick else SEEDS) + 1):
            for part in ("", *PARTS):
                yield replace(base, without=part, seed=seed)


def section(rows: Sequence[SwitchingRow]) -> str:
    unable = {each.run for each in rows if each.s is None}
    lines = []
    unable = {each.run for each in rows if each.s is None}
    for base in _bases(rows, shared=False):
        found = {name: speedup(rows, base, replace(base, system=name)) for name in BASELINES}
        first = next(each for each in rows if each.run == base)
        cannot = {name for name in BASELINES if replace(base, system=name) in unable}
        shown = [
            "cannot" if name in cannot else _shown(found[name], _aim(base)) for name in BASELINES
        ]
        lines.append([_title(base), f"{first.s:.1f} ({first.loads})", *shown])
    missed = [line for base in _bases(rows, shared=False) for line in _bound(rows, base)]
    ablated = [
        [
            f"without {part}",
            *(
                _shown(speedup(rows, base, replace(base, without=part)), None)
                for base in _bases(rows, shared=True)
            ),
        ]
        for part in PARTS
    ]
    names = [base.workflow for base in _bases(rows, shared=True)]
    said = (
        "Seconds of others over Kairos's, with 95 % intervals; bold: as aimed at. In brackets: "
        "loads. `sleep`: a model that was there before wakes in a second.\n\n"
        + table(["case", "Kairos, s (loads)", *BASELINES], lines)
        + "".join(f"\n\n{line}" for line in missed)
    )
    if names:
        said += (
            "\n\nAblations: seconds over those of all parts; four rows share a document.\n\n"
            + table(["part", *names], ablated)
        )
    remembered = [
        [base.workflow, f"{each.mean:.3f} [{each.low:.3f}, {each.high:.3f}]"]
        for base in _bases(rows, shared=False)
        if (each := speedup(rows, replace(base, host_memory=True), base)) is not None
    ]
    if remembered:
        said += (
            "\n\nOne device, where a row's context is lost with each switch: seconds over those "
            "with contexts in the host's memory, which come back where that is quicker than to "
            "compute them.\n\n" + table(["case", "computed anew"], remembered)
        )
    return said


def _bases(rows: Sequence[SwitchingRow], *, shared: bool) -> list[SwitchingRun]:
    """Kairos's runs of the first seed, a case each."""
    runs = (each.run for each in rows if each.run.system == KAIROS and each.run.seed == 1)
    return [
        each
        for each in runs
        if (each.shared > 1) == shared and not (each.without or each.host_memory)
    ]


def _title(base: SwitchingRun) -> str:
    return f"{base.workflow}, {base.devices} device{'s' * (base.devices > 1)}, {base.loads}"


def _bound(rows: Sequence[SwitchingRow], base: SwitchingRun) -> Iterator[str]:
    """What bounds it, where the aim is missed and models switch."""
    theirs = replace(base, system="topological")
    found = speedup(rows, base, theirs)
    if found is None or base.workflow not in SWITCHING or found.mean >= AIM:
        return
    took = next(each.s for each in rows if each.run == theirs)
    assert took is not None
    best = best_placement_s(base)
    yield (
        f"{_title(base)}: loads alone take {loads_alone_s(base):.0f} s, and the best of all "
        f"placements {best:.1f} s by its costs; the topological one's {took:.1f} s are "
        f"{took / best:.2f} times that."
    )


def _aim(base: SwitchingRun) -> float:
    return AIM if base.workflow in SWITCHING else NEVER_BELOW


def _shown(of: Interval | None, aim: float | None) -> str:
    if of is None:
        return "not run"
    times = f"{of.mean:.2f} [{of.low:.2f}, {of.high:.2f}]"
    return f"**{times}**" if aim is not None and of.mean >= aim else times


def figures(rows: Sequence[SwitchingRow]) -> list[Figure]:
    against: dict[str, float] = {}
    for base in _bases(rows, shared=False):
        found = speedup(rows, base, replace(base, system="topological"))
        if found is not None:
            against[f"{base.workflow}/{base.devices}/{base.loads}"] = found.mean
    alike = {name: each for name, each in against.items() if name.split("/")[0] in ALIKE}
    switching = {name: each for name, each in against.items() if name not in alike}
    found_in = (
        (switching, max, AIM, "models switch, at best"),
        (alike, min, NEVER_BELOW, "one model, at worst"),
    )
    return [
        Figure(
            name=f"e42 topological, over Kairos: {title}",
            value=choose(group.values(), default=None),
            unit="times",
            target=aim,
            better="higher",
            detail=group,
        )
        for group, choose, aim, title in found_in
    ]


STUDY = Study(
    title="Batches on devices that switch models",
    row=SwitchingRow,
    measure=measure,
    section=section,
    figures=figures,
)
